"""Signed bundles, keys, and what an unsigned bundle or one signed by an unknown key shows."""

import base64
import json
import stat
from pathlib import Path

import pytest

from palimpsest.certificate import Verification, certify, keygen, verify
from palimpsest.certificate.bundle import Bundle, pack, statement, unpack
from palimpsest.certificate.checks import examine
from palimpsest.certificate.signature import pae, read_public, signer
from palimpsest.errors import InputError
from palimpsest.run.files import canonical


def checked(bundle: Path, key: Path | None = None) -> Verification:
    """Return the verification of a bundle, without the cost of a process of its own."""
    return examine(bundle.read_bytes(), None if key is None else read_public(key))


def failing(verified: Verification) -> str:
    assert verified.answer == "failed" and verified.failure is not None
    return verified.failure.name


def test_a_signed_bundle_verifies_with_its_makers_key_only(signed_bundle, keys, tmp_path):
    verified = checked(signed_bundle, keys[1])
    assert verified.answer == "ok" and str(verified.signer).startswith("sha256:")
    other = keygen(tmp_path / "other.pem")[1]
    assert failing(checked(signed_bundle, other)) == "signature"


def test_without_a_key_a_valid_signature_is_by_a_key_that_nobody_named(signed_bundle):
    verified = checked(signed_bundle)
    assert verified.ok and verified.answer == "self-signed"
    (check,) = [check for check in verified.checks if check.state != "ok"]
    assert check.name == "signature" and check.state == "self-signed"
    assert verified.to_json()["answer"] == "self-signed"
    assert verified.lines()[0].startswith("Answer: self-signed")
    assert verified.lines()[1] == f"Signer: {verified.signer}"


def test_an_unsigned_bundle_says_so_and_fails_when_a_key_is_given(bundle, keys):
    verified = checked(bundle)
    assert verified.ok and verified.answer == "unsigned" and verified.signer is None
    states = {check.name: check.state for check in verified.checks if check.state != "ok"}
    assert states == {"signature": "unsigned"}
    assert failing(checked(bundle, keys[1])) == "signature"


def test_taking_the_signature_away_is_seen_even_without_a_key(signed_bundle):
    members = unpack(signed_bundle.read_bytes())
    del members["statement.dsse.json"]
    assert failing(examine(pack(members))) == "signature"


def forge(members: dict[str, bytes], public: bytes) -> dict[str, bytes]:
    """Return a bundle that names this key, with a signature that nobody had to make."""
    body = statement(Bundle(members), signer(public))
    signature = (1).to_bytes(32, "little") + bytes(32)
    whole = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [
            {"keyid": signer(public)["keyid"], "sig": base64.b64encode(signature).decode()}
        ],
    }
    return members | {"statement.json": body, "statement.dsse.json": canonical(whole) + b"\n"}


@pytest.mark.parametrize("public", [b"\2" + bytes(31), b"\xff" * 32, b"short"])
def test_a_made_up_signature_is_refused(public, members):
    assert failing(examine(pack(forge(members, public)))) == "signature"


def test_an_envelope_of_another_statement_is_refused(signed_bundle, members):
    envelope = unpack(signed_bundle.read_bytes())["statement.dsse.json"]
    assert failing(examine(pack(members | {"statement.dsse.json": envelope}))) == "signature"
    assert failing(examine(pack(members | {"statement.dsse.json": b"{}\n"}))) == "signature"


def test_the_envelope_is_dsse_and_can_be_checked_by_hand(signed_bundle, keys):
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
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path):
    private, public = keygen(tmp_path / "k.pem")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    with pytest.raises(InputError, match="exists"):
        keygen(private)
    assert private.read_bytes() == before
    assert b"PRIVATE" not in public.read_bytes()


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_not_a_key_is_bad_input(content, bundle, run_folder, tmp_path):
    file = tmp_path / "bad.pem"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.pem"):
        verify(bundle, file)
    with pytest.raises(InputError, match=r"bad\.pem"):
        certify(run_folder, tmp_path / "b.zip", file)
    assert not (tmp_path / "b.zip").exists()


def test_a_key_of_another_kind_is_refused(run_folder, tmp_path):
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    file = tmp_path / "x.pem"
    key = X25519PrivateKey.generate()
    file.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    with pytest.raises(InputError, match="expected an Ed25519"):
        certify(run_folder, tmp_path / "b.zip", file)
