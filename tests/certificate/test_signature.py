"""Signed bundles, keys, and what an unsigned bundle or one signed by an unknown key shows."""

import base64
import json
import stat
from pathlib import Path

import pytest

from palimpsest.certificate import Verification, certify, keygen, verify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.bundle import Bundle, statement
from palimpsest.certificate.signature import is_strong, pae, read_public, signer
from palimpsest.certificate.verification import examine
from palimpsest.errors import InputError
from palimpsest.run.files import canonical

PRIME = 2**255 - 19
EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
"""The coordinate y of points of order eight, which a test below checks."""
SMALL_ORDER = {
    "identity": 1,
    "order 2": PRIME - 1,
    "order 4": 0,
    "order 8": EIGHTH,
    "order 8, negated": PRIME - EIGHTH,
    "identity, written otherwise": PRIME + 1,
    "order 4, written otherwise": PRIME,
}


def checked(bundle: Path, key: Path | None = None) -> Verification:
    """Return the verification of a bundle, without the cost of a process of its own."""
    return examine(bundle.read_bytes(), None if key is None else read_public(key))


def failing(verified: Verification) -> str:
    assert verified.answer == "failed" and verified.failure is not None
    return verified.failure.name


def test_a_signed_bundle_verifies_with_its_makers_key_only(
    signed_bundle: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    verified = checked(signed_bundle, keys[1])
    assert verified.answer == "ok" and str(verified.signer).startswith("sha256:")
    other = keygen(tmp_path / "other.pem")[1]
    assert failing(checked(signed_bundle, other)) == "signature"


def test_without_a_key_a_valid_signature_is_by_a_key_that_nobody_named(signed_bundle: Path) -> None:
    verified = checked(signed_bundle)
    assert verified.ok and verified.answer == "self-signed"
    (check,) = [check for check in verified.checks if check.state != "ok"]
    assert check.name == "signature" and check.state == "self-signed"
    assert check.what.startswith("signed by a key that nobody named")
    assert verified.to_json()["answer"] == "self-signed"
    assert "key that nobody named" in verified.lines()[-1]


def test_an_unsigned_bundle_says_so_and_fails_when_a_key_is_given(
    bundle: Path, keys: tuple[Path, Path]
) -> None:
    verified = checked(bundle)
    assert verified.ok and verified.answer == "unsigned" and verified.signer is None
    states = {check.name: check.state for check in verified.checks if check.state != "ok"}
    assert states == {"signature": "unsigned"}
    assert failing(checked(bundle, keys[1])) == "signature"


def test_taking_the_signature_away_is_seen_even_without_a_key(signed_bundle: Path) -> None:
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


def test_a_key_that_is_no_point_of_the_curve_signs_nothing(members: dict[str, bytes]) -> None:
    d, y = -121665 * pow(121666, -1, PRIME), 2
    square = (y * y - 1) * pow(d * y * y + 1, -1, PRIME) % PRIME
    assert pow(square, (PRIME - 1) // 2, PRIME) == PRIME - 1  # no x has this square
    assert failing(examine(pack(forge(members, y.to_bytes(32, "little"))))) == "signature"


@pytest.mark.parametrize("y", SMALL_ORDER.values(), ids=SMALL_ORDER.keys())
@pytest.mark.parametrize("sign", [0, 1])
def test_a_key_of_small_order_is_refused(
    y: int, sign: int, members: dict[str, bytes], tmp_path: Path
) -> None:
    """With the identity as key, R = identity and S = 0 fit any message: nobody had to sign it."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = (y | sign << 255).to_bytes(32, "little")
    assert not is_strong(public)
    assert failing(examine(pack(forge(members, public)))) == "signature"
    file = tmp_path / "weak.pem"
    key = Ed25519PublicKey.from_public_bytes(public)
    file.write_bytes(key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InputError, match="weak"):
        read_public(file)


def test_keys_made_at_random_are_strong_and_the_table_above_is_of_points() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    for _ in range(20):
        assert is_strong(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    d = -121665 * pow(121666, -1, PRIME)
    # 2P has order four where its y, (y^2 + x^2) / (1 - d x^2 y^2), is zero: on the curve with
    # x^2 = -y^2.
    assert (EIGHTH**2 - 1 + EIGHTH**2 * (d * EIGHTH**2 + 1)) % PRIME == 0


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
