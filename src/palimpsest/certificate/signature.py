"""Ed25519 signatures of a statement, in a DSSE envelope (https://github.com/secure-systems-lab/dsse).

The signed bytes are PAE(type, body) = "DSSEv1" SP len(type) SP type SP len(body) SP body, so a
signature of a statement cannot be passed off as one of anything else. The public key is in the
statement: without a key of the reader's own, a signature shows that the bundle is as its maker left
it, not who the maker is. Keys of small order are refused: for some of them a signature can be made
up that fits any statement.
"""

import base64
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import BundleError, InputError
from palimpsest.run.files import canonical, digest, write_bytes, write_with

# Loaded by the functions that need it: an unsigned bundle is checked without it.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_KEY_LIMIT = 64 * 1024
_PRIME = 2**255 - 19
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {1, _PRIME - 1, 0, _EIGHTH, _PRIME - _EIGHTH}
"""The coordinate y of the points of order 1, 2, 4 and 8 of Ed25519's curve."""


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
    shown = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)

    def write_secret(temporary: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(secret)

    write_with(private, write_secret)
    write_bytes(public, shown)
    return private, public


def read_private(path: Path | str) -> "Ed25519PrivateKey":
    """Return the Ed25519 private key in a PEM file, or raise InputError."""
    key: Ed25519PrivateKey = _read_key(path, private=True)
    return key


def read_public(path: Path | str) -> bytes:
    """Return the 32 bytes of the Ed25519 public key in a PEM file, or raise InputError."""
    public = bytes(_read_key(path, private=False).public_bytes_raw())
    if not is_strong(public):
        raise InputError(f"{path}: a weak key, which signs nothing; expected one made at random")
    return public


def public_of(key: "Ed25519PrivateKey") -> bytes:
    """Return the 32 bytes of the public key that belongs to a private one."""
    return key.public_key().public_bytes_raw()


def signer(public: bytes) -> dict[str, str]:
    """Return how a statement names the key it is signed with."""
    return {"algorithm": "ed25519", "keyid": digest(public), "public_key": public.hex()}


def signer_key(value: Any) -> bytes:
    """Return the public key in what ``signer`` returned, or raise BundleError."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        public = bytes.fromhex(value["public_key"])
        if len(public) == 32 and value == signer(public):
            if not is_strong(public):
                raise BundleError(
                    f"key {digest(public)} is weak (of small order): a signature with it shows "
                    "nothing"
                )
            return public
    raise BundleError("the statement names no signer in the way `palimpsest certify` does")


def is_strong(public: bytes) -> bool:
    """Return whether the key, read as a point of the curve in its one encoding, has large order."""
    y = int.from_bytes(public, "little") % 2**255  # the top bit is the sign of x
    return y < _PRIME and y not in _SMALL_ORDER


def pae(kind: str, body: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, the bytes that are signed."""
    label = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(label), label, len(body), body)


def envelope(body: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Return the DSSE envelope of a statement."""
    return _rendered(body, public_of(key), key.sign(pae(PAYLOAD_TYPE, body)))


def check_envelope(data: bytes, document: Any, body: bytes, public: bytes) -> None:
    """Raise BundleError unless the envelope holds ``body`` signed with the key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signature = base64.b64decode(document["signatures"][0]["sig"], validate=True)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BundleError("statement.dsse.json holds no signature") from error
    # Byte for byte, so that no second spelling of the same envelope passes.
    if data != _rendered(body, public, signature):
        raise BundleError("statement.dsse.json is not an envelope of statement.json by its signer")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, pae(PAYLOAD_TYPE, body))
    except (InvalidSignature, ValueError) as error:
        raise BundleError(f"the signature is not one by key {digest(public)}") from error


def _rendered(body: bytes, public: bytes, signature: bytes) -> bytes:
    signatures = [{"keyid": digest(public), "sig": base64.b64encode(signature).decode()}]
    payload = base64.b64encode(body).decode()
    whole = {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return canonical(whole) + b"\n"


def _read_key(path: Path | str, *, private: bool) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ed25519

    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    expected = (
        f"expected an Ed25519 {'private' if private else 'public'} key in an unencrypted PEM file, "
        f"as `palimpsest certify --new-key KEY` writes it to {'KEY' if private else 'KEY.pub'}"
    )
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; {expected}")
        with open(path, "rb") as file:
            data = file.read(_KEY_LIMIT)
        key = s.load_pem_private_key(data, None) if private else s.load_pem_public_key(data)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: cannot be read as a key; {expected}") from error
    if not isinstance(key, kind):
        raise InputError(f"{path}: {type(key).__name__}; {expected}")
    return key
