"""Signed bundles, keys, and what an unsigned bundle shows."""

import base64
import json
import stat
from pathlib import Path

import pytest

from palimpsest.certificate import certify, keygen, verify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.signature import pae, read_public
from palimpsest.certificate.verify import Verification, examine
from palimpsest.errors import InputError


def checked(bundle: Path, key: Path | None = None) -> Verification:
    """Return the verification of a bundle, without the cost of a process of its own."""
    return examine(bundle.read_bytes(), None if key is None else read_public(key))


def test_a_signed_bundle_verifies_with_its_makers_key_only(
    signed_bundle: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    assert checked(signed_bundle, keys[1]).ok
    assert checked(signed_bundle, keys[1]).signer.startswith("sha256:")
    other = keygen(tmp_path / "other.pem")[1]
    verification = checked(signed_bundle, other)
    assert not verification.ok
    assert verification.failure is not None and verification.failure.name == "signature"


def test_without_a_key_a_signature_proves_no_maker_and_says_so(signed_bundle: Path) -> None:
    verification = checked(signed_bundle)
    assert verification.ok and verification.answer == "ok"
    assert "key inside the bundle" in "\n".join(verification.lines())


def test_an_unsigned_bundle_fails_when_a_key_is_given(
    bundle: Path, keys: tuple[Path, Path]
) -> None:
    verification = checked(bundle, keys[1])
    assert not verification.ok
    assert verification.failure is not None and "not signed" in verification.failure.what


def test_taking_the_signature_away_is_seen_even_without_a_key(
    signed_bundle: Path, tmp_path: Path
) -> None:
    members = unpack(signed_bundle.read_bytes())
    del members["statement.dsse.json"]
    stripped = tmp_path / "stripped.zip"
    stripped.write_bytes(pack(members))
    assert not checked(stripped).ok


def test_the_envelope_is_dsse_and_can_be_checked_by_hand(
    signed_bundle: Path, keys: tuple[Path, Path]
) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    members = unpack(signed_bundle.read_bytes())
    envelope = json.loads(members["statement.dsse.json"])
    body = base64.b64decode(envelope["payload"])
    assert body == members["statement.json"]
    kind = envelope["payloadType"]
    signed_bytes = f"DSSEv1 {len(kind)} {kind} {len(body)} ".encode() + body
    assert signed_bytes == pae(kind, body)
    public = load_pem_public_key(keys[1].read_bytes())
    public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed_bytes)  # type: ignore[union-attr,call-arg,arg-type]


def test_pae_is_the_specifications_example() -> None:
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    private, public = keygen(tmp_path / "k.pem")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    with pytest.raises(InputError, match="exists"):
        keygen(private)
    assert private.read_bytes() == before
    assert b"PRIVATE" not in public.read_bytes()


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_not_a_key_is_bad_input(
    content: bytes, bundle: Path, run_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.pem"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.pem"):
        verify(bundle, file)
    with pytest.raises(InputError, match=r"bad\.pem"):
        certify(run_folder, tmp_path / "b.zip", file)
    assert not (tmp_path / "b.zip").exists()


def test_a_key_of_another_kind_is_refused(run_folder: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    file = tmp_path / "x.pem"
    key = X25519PrivateKey.generate()
    file.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    with pytest.raises(InputError, match="expected an Ed25519"):
        certify(run_folder, tmp_path / "b.zip", file)
