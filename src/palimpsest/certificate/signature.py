"""Ed25519 signatures of a statement, in a DSSE envelope (https://github.com/secure-systems-lab/dsse).

The signed bytes are PAE(type, body) = "DSSEv1" SP len(type) SP type SP len(body) SP body, so a
signature of a statement cannot be passed off as one of anything else. The public key is in the
statement: without a key of the reader's own, a signature shows that the bundle is as its maker left
it, not who the maker is.
"""

import base64
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palimpsest.errors import BundleError, InputError
from palimpsest.files import read_bytes
from palimpsest.run.files import canonical, digest, write_bytes, write_with

# Loaded by the functions that need it: an unsigned bundle is checked without it.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_KEY_LIMIT = 64 * 1024


# -- keys ------------------------------------------------------------------------------------------


def keygen(path: Path | str) -> tuple[Path, Path]:
    """Write a key pair, the private key at ``path`` (readable by its owner) and ``path``.pub."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = Path(path), Path(f"{path}.pub")
    for file in (private, public):
        if file.exists():
            raise InputError(f"{file}: exists; expected a new file, since keys are not replaced")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())

    def write_secret(temporary: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(secret)

    write_with(private, write_secret)
    shown = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    write_bytes(public, shown)
    return private, public


def read_private(path: Path | str) -> "Ed25519PrivateKey":
    """Return the Ed25519 private key in a PEM file, or raise InputError."""
    key: Ed25519PrivateKey = _read_key(path, "private")
    return key


def read_public(path: Path | str) -> bytes:
    """Return the 32 bytes of the Ed25519 public key in a PEM file, or raise InputError."""
    return bytes(_read_key(path, "public").public_bytes_raw())


def _read_key(path: Path | str, which: Literal["private", "public"]) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ed25519

    expected = f"an Ed25519 {which} key in an unencrypted PEM file, as `palimpsest certify "
    expected += "--new-key KEY` writes it"
    data = read_bytes(path, _KEY_LIMIT, InputError, expected)
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        private = which == "private"
        key = s.load_pem_private_key(data, None) if private else s.load_pem_public_key(data)
        if isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
            return key
    raise InputError(f"{path}: no such key; expected {expected}")


# -- what a statement names, and what is signed ----------------------------------------------------


def public_of(key: "Ed25519PrivateKey") -> bytes:
    """Return the 32 bytes of the public key that belongs to a private one."""
    return key.public_key().public_bytes_raw()


def signer(public: bytes) -> dict[str, str]:
    """Return how a statement names the key it is signed with."""
    return {"algorithm": "ed25519", "keyid": digest(public), "public_key": public.hex()}


def signer_key(value: Mapping[str, str]) -> bytes:
    """Return the public key in what ``signer`` returned, or raise BundleError."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        public = bytes.fromhex(value["public_key"])
        if value == signer(public):
            return public
    raise BundleError("the statement names no signer in the way `palimpsest certify` does")


def pae(kind: str, body: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, the bytes that are signed."""
    label = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(label), label, len(body), body)


def envelope(body: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Return the DSSE envelope of a statement."""
    signature = key.sign(pae(PAYLOAD_TYPE, body))
    return canonical(_document(body, public_of(key), signature)) + b"\n"


def check_envelope(document: Any, body: bytes, public: bytes) -> None:
    """Raise BundleError unless the envelope holds ``body`` signed with the key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signature = base64.b64decode(document["signatures"][0]["sig"], validate=True)
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, pae(PAYLOAD_TYPE, body))
    except (KeyError, IndexError, TypeError, ValueError, InvalidSignature) as error:
        raise BundleError(f"the signature is not one by key {digest(public)}") from error
    if document != _document(body, public, signature):
        raise BundleError("statement.dsse.json is not an envelope of statement.json by its signer")


def _document(body: bytes, public: bytes, signature: bytes) -> dict[str, Any]:
    signatures = [{"keyid": digest(public), "sig": base64.b64encode(signature).decode()}]
    payload = base64.b64encode(body).decode()
    return {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": signatures}
