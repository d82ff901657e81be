"""What ``certify`` writes, when it refuses, and what ``verify`` says about its work."""

import base64
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import Result
from small_run import MODELS, NONCE, write_small, write_small_audit
from typer.testing import CliRunner

import palimpsest
from palimpsest.certificate import apart, certify, keygen, verify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.bundle import PREDICATE_TYPE
from palimpsest.certificate.signature import pae, read_public
from palimpsest.certificate.verify import CHECKS, examine
from palimpsest.cli import app
from palimpsest.errors import BundleError, InputError, SealError
from palimpsest.facts.sealed import read_pool
from palimpsest.facts.templates import RELATIONS
from palimpsest.run.store import Run, canonical, digest
from palimpsest.study.results import read_run


def test_an_untouched_bundle_verifies_and_says_what_that_means(bundle: Path) -> None:
    found = verify(bundle)
    assert found.ok
    assert tuple(check.name for check in found.checks) == CHECKS
    assert all(check.passed for check in found.checks)
    assert found.verdicts == (("m--seed0", "certified, a-w1 (reference-relative)"),)
    text = "\n".join(found.lines())
    for said in ("methods as they were produced", "privacy", "not signed", "could invent"):
        assert said in text
    assert found.to_json() == json.loads(json.dumps(found.to_json()))
    assert found.to_json()["ok"] is True


def test_the_verdicts_are_those_of_the_run_folder(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run", seeds=2)
    members = unpack(certify(run, tmp_path / "b.zip").read_bytes())
    for cell in read_run(run).cells:
        assert cell.verdict is not None
        stored = json.loads(members[f"cells/{cell.id}/verdict.json"])
        assert stored == json.loads(cell.verdict.to_json())


def test_a_bundle_is_a_zip_file_with_the_runs_own_bytes(bundle: Path, run_folder: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == sorted(archive.namelist())
        for name in ("plan.json", "chain.jsonl", "cells/m--seed0/items.parquet"):
            assert archive.read(name) == (run_folder / name).read_bytes()


def test_the_same_run_gives_the_same_bytes(bundle: Path, run_folder: Path, tmp_path: Path) -> None:
    again = certify(run_folder, tmp_path / "deep" / "again.zip")
    assert again.read_bytes() == bundle.read_bytes()


def test_the_statement_is_in_toto_and_lists_every_file(members: dict[str, bytes]) -> None:
    told = json.loads(members["statement.json"])
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == PREDICATE_TYPE
    listed = {one["name"]: "sha256:" + one["digest"]["sha256"] for one in told["subject"]}
    assert listed == {n: digest(d) for n, d in members.items() if n != "statement.json"}
    predicate = told["predicate"]
    assert predicate["cells"]["m--seed0"]["verdict"]["candidate"] == "a-w1"
    assert predicate["cells"]["m--seed0"]["models"]["a-w1"] == "sha256:a-w1"
    assert predicate["rules"] == json.loads(members["rules.json"])["hash"]
    assert predicate["seal"]["commitment"] == json.loads(members["seal.json"])["commitment"]


def test_a_run_with_an_unfinished_cell_is_refused_by_name(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run", seeds=2, skip=("m--seed1",))
    with pytest.raises(BundleError, match=r"1 of 2 cells are not finished \(m--seed1\)"):
        certify(run)
    assert not (run / "certificate.zip").exists()


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    table = run / "cells" / "m--seed0" / "items.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"items\.parquet"):
        certify(run)


def test_a_cell_in_which_the_panel_was_never_opened_needs_no_reveal(tmp_path: Path) -> None:
    bundle = certify(write_small(tmp_path / "run", panel=False))
    assert "reveal.json" not in unpack(bundle.read_bytes())
    found = verify(bundle)
    assert found.ok
    assert "never opened" in "\n".join(found.lines())


def test_an_own_pool_is_revealed_from_its_file_and_must_be_the_sealed_one(tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    new = "Quite new words ask about {subject} and the"
    lines = [{"relation": r, "template": f"{new} {r}"} for r in RELATIONS]
    file.write_text("\n".join(json.dumps(line) for line in [{"nonce": NONCE}, *lines]) + "\n")
    pool, nonce = read_pool(file)
    assert nonce == NONCE
    run = write_small(tmp_path / "run", pool=pool, hide_nonce=True)
    with pytest.raises(SealError, match="--pool"):
        certify(run)
    found = verify(certify(run, tmp_path / "own.zip", pool_path=file))
    assert found.ok
    assert "which is public" not in "\n".join(found.lines())
    file.write_text(file.read_text().replace("Quite new", "Rather new"))
    with pytest.raises(SealError, match="not the sealed pool"):
        certify(run, tmp_path / "other.zip", pool_path=file)


def test_an_audit_is_certified_like_a_study_of_one_cell(tmp_path: Path) -> None:
    run = write_small_audit(tmp_path / "run")
    found = verify(certify(run))
    assert found.ok, found.failure
    assert found.verdicts == (("audit", "certified, a-w1 (reference-relative)"),)
    assert "held-out prompts were fixed" in "\n".join(found.lines())


@pytest.mark.parametrize("must_pass", [False, True])
@pytest.mark.parametrize("evidence", [None, 2.9])
def test_an_audits_verdict_is_the_one_of_its_folder_headroom_and_all(
    evidence: float | None, must_pass: bool, tmp_path: Path
) -> None:
    run = write_small_audit(tmp_path / "run", evidence, reference_must_pass=must_pass)
    bundle = certify(run)
    verdict = read_run(run).cells[0].verdict
    assert verdict is not None and ("headroom" in verdict.numbers) == (evidence is not None)
    held = unpack(bundle.read_bytes())
    assert held["cells/audit/verdict.json"] == canonical(json.loads(verdict.to_json())) + b"\n"
    assert ("cells/audit/headroom.parquet" in held) == (evidence is not None)
    assert verify(bundle).ok


def test_a_headroom_left_out_added_or_changed_is_noticed(tmp_path: Path) -> None:
    name = "cells/audit/headroom.parquet"
    held = unpack(certify(write_small_audit(tmp_path / "run", 2.9)).read_bytes())
    other = unpack(certify(write_small_audit(tmp_path / "other", 2.8)).read_bytes())
    bare = unpack(certify(write_small_audit(tmp_path / "bare")).read_bytes())
    left_out = {file: data for file, data in held.items() if file != name}
    for changed in (left_out, held | {name: other[name]}, bare | {name: held[name]}):
        mended = changed | {"statement.json": listing(changed)}
        found = examine(pack(mended))
        assert not found.ok and found.failure is not None


def listing(files: dict[str, bytes]) -> bytes:
    """The statement of a bundle with its list of files mended."""
    told = json.loads(files["statement.json"])
    told["subject"] = [
        {"name": name, "digest": {"sha256": hashlib.sha256(files[name]).hexdigest()}}
        for name in sorted(files)
        if name != "statement.json"
    ]
    return canonical(told) + b"\n"


def test_a_fork_is_certified_but_announced(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    first = Run.open(run)
    fork = Run.create_or_resume(
        run, first.plan | {"name": "other"}, first.rules, first.environment, first.seal,
        cells=first.cells, fork=True,
    )  # fmt: skip
    from small_run import write_small_cell

    from palimpsest.facts.sealed import builtin_pool

    write_small_cell(fork, "m--seed0", builtin_pool(), True)
    found = verify(certify(fork.path))
    assert found.ok
    assert "ATTENTION: the run is a fork of 'run'" in "\n".join(found.lines())


# -- signatures ----------------------------------------------------------------------------------


def test_a_signed_bundle_verifies_with_its_makers_key_only(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    assert verify(signed, keys[1]).ok
    assert verify(signed, keys[1]).signer.startswith("sha256:")
    other = keygen(tmp_path / "other.pem")[1]
    found = verify(signed, other)
    assert not found.ok
    assert found.failure is not None and found.failure.name == "signature"


def test_without_a_key_a_signature_proves_no_maker_and_says_so(signed: Path) -> None:
    found = verify(signed)
    assert found.ok
    assert "brings along" in "\n".join(found.lines())


def test_an_unsigned_bundle_fails_when_a_key_is_given(
    bundle: Path, keys: tuple[Path, Path]
) -> None:
    found = verify(bundle, keys[1])
    assert not found.ok
    assert found.failure is not None and "not signed" in found.failure.what


def test_taking_the_signature_away_is_seen_even_without_a_key(signed: Path, tmp_path: Path) -> None:
    members = unpack(signed.read_bytes())
    del members["statement.dsse.json"]
    stripped = tmp_path / "stripped.zip"
    stripped.write_bytes(pack(members))
    assert not verify(stripped).ok


def test_the_envelope_is_dsse_and_can_be_checked_by_hand(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    members = unpack(signed.read_bytes())
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
def test_a_file_that_is_no_key_is_bad_input(
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


# -- what can be asked for -----------------------------------------------------------------------


def test_what_is_no_file_is_bad_input_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent.zip", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError):
            verify(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\3\4", b"PK\5\6" + bytes(18), b"hello" * 99])
def test_what_is_no_bundle_fails_with_a_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(content)
    found = verify(file)
    assert not found.ok
    with pytest.raises(BundleError, match=r"b\.zip does not verify: archive: "):
        found.require("b.zip")


def test_a_bundle_packed_by_another_program_fails(bundle: Path, tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for name, data in unpack(bundle.read_bytes()).items():
                archive.writestr(name, data)
        (tmp_path / "b.zip").write_bytes(packed.getvalue())
        assert not verify(tmp_path / "b.zip").ok


def invoked(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


def test_the_command_says_what_the_certificate_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_small(tmp_path / "run")
    said = invoked("certify", str(run)).stdout.splitlines()
    assert said == [f"{run}/certificate.zip", "certificate of a certified verdict: a-w1"]
    monkeypatch.setitem(MODELS, "a-w1", MODELS["a-w2"])
    run = write_small(tmp_path / "other", seeds=2)
    words = "certificate of an uncertified verdict: all_excluded"
    said = invoked("certify", str(run)).stdout.splitlines()
    assert said[1:] == [f"m--seed0: {words}", f"m--seed1: {words}"]
    told = json.loads(invoked("certify", str(run), "--json").stdout)
    assert told["verdicts"]["m--seed1"]["reason"] == "all_excluded"


def test_the_command_refuses_an_unfinished_run_as_bad_input_and_a_damaged_one_not(
    tmp_path: Path,
) -> None:
    run = write_small(tmp_path / "run", seeds=2, skip=("m--seed1",))
    failed = invoked("certify", str(run)).exception
    assert isinstance(failed, InputError) and failed.exit_code == 2
    assert "1 of 2 cells are not finished" in str(failed)
    whole = write_small(tmp_path / "whole")
    table = whole / "cells" / "m--seed0" / "items.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    assert isinstance(invoked("certify", str(whole)).exception, BundleError)


def test_a_run_folder_given_to_verify_is_answered_with_the_bundle_in_it(tmp_path: Path) -> None:
    (tmp_path / "certificate.zip").write_bytes(b"PK")
    failed = invoked("verify", str(tmp_path)).exception
    assert isinstance(failed, InputError)
    assert f"palimpsest verify {tmp_path / 'certificate.zip'}" in str(failed)
    (tmp_path / "certificate.zip").unlink()
    failed = invoked("verify", str(tmp_path)).exception
    assert isinstance(failed, InputError) and "certificate.zip" not in str(failed)


# Setting sys.modules["torch"] to None would do, but scipy looks torch up there and stumbles.
def test_the_command_verifies_where_there_is_no_torch(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    # Modules that are found first and fail, for the command and for the process it examines in.
    for name in ("torch", "transformers", "safetensors", "tokenizers"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    places = [str(tmp_path), str(Path(palimpsest.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )

    assert "torch is not here" in ran("-c", "import torch").stderr
    done = ran("-m", "palimpsest.cli", "verify", str(signed), "--key", str(keys[1]))
    assert done.returncode == 0, done.stderr
    assert "certified, a-w1" in done.stdout
    changed = tmp_path / "changed.zip"
    changed.write_bytes(signed.read_bytes().replace(b'"alpha":0.05', b'"alpha":0.06'))
    done = ran("-m", "palimpsest.cli", "verify", str(changed), "--key", str(keys[1]))
    assert done.returncode == 1 and "FAILED" in done.stdout


def test_the_program_in_the_documentation_checks_a_bundle(bundle: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]

    def checked(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", program, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = checked(bundle)
    assert done.returncode == 0, done.stderr
    assert verify(bundle).terms in done.stdout
    members = unpack(bundle.read_bytes())
    changed = tmp_path / "changed.zip"
    changed.write_bytes(pack(members | {"rules.json": members["rules.json"][:-1]}))
    assert "AssertionError" in checked(changed).stderr


# -- a process of its own ------------------------------------------------------------------------


def test_an_examination_that_breaks_off_or_never_ends_is_a_failure(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    for script, said in (
        ("kill -ABRT $$", "broke off (exit code -6"),
        ("echo '{}'", "broke off (exit code 0"),
        ("echo '{\"ok\": true}'", "broke off"),
        ("echo 'Out of memory' >&2; exit 1", "Out of memory"),
        ("sleep 60", "not done within"),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(apart, "SECONDS", 1 if "sleep" in script else 60)
        found = verify(bundle)
        assert not found.ok
        assert not found.verdicts
        assert found.failure is not None and said in found.failure.what


def test_a_module_beside_the_bundle_is_not_run(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "json", "pyarrow", "palimpsest"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert verify(bundle).ok
    assert not (tmp_path / "canary").exists()


def test_what_is_told_by_another_process_is_told_whole(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    inside = examine(signed.read_bytes(), read_public(keys[1]))
    assert verify(signed, keys[1]) == inside
