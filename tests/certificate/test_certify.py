"""What ``certify`` writes, when it refuses, and what ``verify`` says about its work."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import Result
from forgery import failed, mended, with_cell
from palimpsest.report.html import write_report
from small_run import MODELS, NONCE, recorded, write_small, write_small_audit, write_small_cell
from typer.testing import CliRunner

import palimpsest
from palimpsest.certificate import apart, certify, verify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.bundle import PREDICATE_TYPE
from palimpsest.certificate.signature import read_public
from palimpsest.certificate.verify import CHECKS, Verification, examine
from palimpsest.cli import app
from palimpsest.errors import BundleError, InputError, SealError
from palimpsest.facts.nonce import RELATIONS
from palimpsest.facts.sealed import builtin_pool, read_pool
from palimpsest.report.results import read_run
from palimpsest.run.store import Run, canonical, digest, table_bytes, table_from_bytes
from palimpsest.stats import axes
from palimpsest.stats.axes import AXES, Axis
from palimpsest.stats.rules import Rules


def checked(bundle: Path, key: Path | None = None) -> Verification:
    """Return the verification of a bundle, without the cost of a process of its own."""
    return examine(bundle.read_bytes(), None if key is None else read_public(key))


def test_an_untouched_bundle_verifies_and_says_what_that_means(
    signed_bundle: Path, keys: tuple[Path, Path]
) -> None:
    verification = verify(signed_bundle, keys[1])
    assert verification.answer == "ok" and verification.ok
    assert tuple(check.name for check in verification.checks) == CHECKS
    assert {check.state for check in verification.checks} == {"ok"}
    ((cell, words),) = verification.verdicts.items()
    assert cell == "m--seed0"
    assert words.startswith("Certified: a-w1. Indistinguishable from 5 retrainings on 8 axes (p = ")
    assert "would have noticed 10 % of the injected weights" in words
    text = "\n".join(verification.lines())
    for said in ("models as they were produced", "privacy", "key you gave", "could invent"):
        assert said in text
    assert text.endswith("Answer: ok (all checks passed, and the signature is valid)")
    assert verification.to_json() == json.loads(json.dumps(verification.to_json()))
    assert verification.to_json()["answer"] == "ok"


def test_an_unsigned_bundle_says_unsigned_and_not_ok(bundle: Path) -> None:
    verification = checked(bundle)
    assert verification.ok and verification.answer == "unsigned"
    told = verification.to_json()
    assert told["answer"] == "unsigned" and "ok" not in told
    assert [check["name"] for check in told["checks"] if check["state"] == "unsigned"] == [
        "signature"
    ]
    lines = verification.lines()
    assert any(line.startswith("unsigned  signature: ") for line in lines)
    assert lines[-1] == "Answer: unsigned (all checks passed; nobody signed it)"


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
        for name in ("plan.json", "record.jsonl", "cells/m--seed0/items.parquet"):
            assert archive.read(name) == (run_folder / name).read_bytes()


def test_the_same_run_gives_the_same_bytes(bundle: Path, run_folder: Path, tmp_path: Path) -> None:
    again = certify(run_folder, tmp_path / "deep" / "again.zip")
    assert again.read_bytes() == bundle.read_bytes()


def test_the_statement_is_in_toto_and_lists_every_file(members: dict[str, bytes]) -> None:
    stated = json.loads(members["statement.json"])
    assert stated["_type"] == "https://in-toto.io/Statement/v1"
    assert stated["predicateType"] == PREDICATE_TYPE
    listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
    assert listed == {n: digest(d) for n, d in members.items() if n != "statement.json"}
    predicate = stated["predicate"]
    verdict = {"status": "certified", "grade": "indistinguishable", "candidate": "a-w1"}
    verdict |= {"reason": None, "detection_limit": 0.1}
    assert predicate["cells"]["m--seed0"]["verdict"] == verdict
    assert predicate["cells"]["m--seed0"]["models"]["a-w1"] == "sha256:a-w1"
    assert predicate["rules"] == json.loads(members["rules.json"])["hash"]
    assert predicate["seal"] == json.loads(members["seal.json"])["commitment"]


def test_a_signed_certificate_is_not_replaced_by_an_unsigned_one(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    run = write_small(tmp_path / "run")
    signed = certify(run, key_path=keys[0])
    before = signed.read_bytes()
    with pytest.raises(InputError, match=r"holds a signed certificate.*--key.*--out"):
        certify(run)
    assert signed.read_bytes() == before
    # Damaged, it is not thrown away either.
    signed.write_bytes(before[:-1])
    with pytest.raises(InputError, match="holds a signed certificate"):
        certify(run)
    assert certify(run, key_path=keys[0]).read_bytes() == before
    unsigned = certify(run, tmp_path / "unsigned.zip")
    assert certify(run, unsigned) == unsigned


def test_every_axis_control_and_distance_is_in_the_bundle(members: dict[str, bytes]) -> None:
    verdict = json.loads(members["cells/m--seed0/verdict.json"])
    finding = next(f for f in verdict["findings"] if f["name"] == "a-w1")
    axes = set(Rules().without("reversed").axes)
    assert set(finding["comparison"]["z"]) == set(finding["comparison"]["gaps"]) == axes
    assert finding["comparison"]["test"] == "student-t"
    assert set(finding["comparison"]["worst"]) == {"axis", "direction", "sd"}
    assert verdict["dose"]["enough"] is True
    kinds = [control["kind"] for control in verdict["controls"]]
    assert kinds == ["injected"] + ["interpolation"] * 4 + ["suppressor"] + ["reference"] * 5


def test_a_new_axis_and_its_measure_reach_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = Axis(
        name="total",
        short="total",
        meaning="Sum of everything.",
        read=lambda model: model.extra.get("total"),
        needs="hidden states",
        stake="injected",
        low="too little",
        high="too much",
    )
    monkeypatch.setattr(axes, "AXES", (*AXES, total))
    held = unpack(certify(write_small(tmp_path / "run", measure="total")).read_bytes())
    assert "cells/m--seed0/measures.parquet" in held
    assert examine(pack(held)).ok
    verdict = json.loads(held["cells/m--seed0/verdict.json"])
    assert all(finding["values"]["total"] > 0 for finding in verdict["findings"])
    assert all("total" in finding["comparison"]["z"] for finding in verdict["findings"])
    # Its numbers are evidence like all others.
    name = "cells/m--seed0/measures.parquet"
    table = table_from_bytes(held[name], name)
    held[name] = table_bytes(table | {"value": table["value"] + 1.0 * (table["model"] == "a-w1")})
    failed(mended(held), "record")
    failed(mended(with_cell(held)), "verdicts")


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
    verification = checked(bundle)
    assert verification.ok
    assert "never opened" in "\n".join(verification.lines())


def test_an_own_pool_is_revealed_from_its_file_and_must_be_the_sealed_one(tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    new = "Quite new words ask about {subject} and the"
    lines = [{"relation": r, "template": f"{new} {r}"} for r in RELATIONS]
    file.write_text("\n".join(json.dumps(line) for line in [{"nonce": NONCE}, *lines]) + "\n")
    pool = read_pool(file)
    assert pool.nonce == NONCE
    run = write_small(tmp_path / "run", pool=pool)
    with pytest.raises(SealError, match="--pool"):
        certify(run)
    verification = checked(certify(run, tmp_path / "own.zip", pool_path=file))
    assert verification.ok
    assert "which is public" not in "\n".join(verification.lines())
    file.write_text(file.read_text().replace("Quite new", "Rather new"))
    with pytest.raises(SealError):
        certify(run, tmp_path / "other.zip", pool_path=file)


def test_an_audit_is_certified_like_a_study_of_one_cell(audit_bundle: Path) -> None:
    verification = checked(audit_bundle)
    assert verification.ok, verification.failure
    ((cell, words),) = verification.verdicts.items()
    assert cell == "audit" and words.startswith("Certified: a-w1.")
    assert "held-out prompts were fixed" in "\n".join(verification.lines())


@pytest.mark.parametrize("evidence", [None, 2.9])
def test_an_audits_verdict_is_the_one_of_its_folder_headroom_and_all(
    evidence: float | None, tmp_path: Path
) -> None:
    run = write_small_audit(tmp_path / "run", evidence)
    held = unpack(certify(run).read_bytes())
    verdict = read_run(run).cells[0].verdict
    assert verdict is not None and ("headroom" in verdict.numbers) == (evidence is not None)
    assert held["cells/audit/verdict.json"] == canonical(json.loads(verdict.to_json())) + b"\n"
    assert ("cells/audit/headroom.parquet" in held) == (evidence is not None)


def test_a_fork_is_certified_but_announced(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    first = Run.open(run)
    fork = Run.create_or_resume(
        run, first.plan | {"name": "other"}, first.rules, first.environment, first.seal,
        cells=first.cells, fork=True,
    )  # fmt: skip
    write_small_cell(fork, "m--seed0", builtin_pool(), True)
    verification = checked(certify(recorded(fork)))
    assert verification.ok
    assert "ATTENTION: the run is a fork of 'run'" in "\n".join(verification.lines())


# -- what can be asked for -----------------------------------------------------------------------


def test_what_is_not_a_file_is_bad_input_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent.zip", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError):
            verify(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\3\4", b"PK\5\6" + bytes(18), b"hello" * 99])
def test_what_is_not_a_bundle_fails_with_a_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(content)
    verification = checked(file)
    assert not verification.ok
    with pytest.raises(BundleError, match=r"b\.zip does not verify: archive: "):
        verification.require("b.zip")


def test_a_bundle_packed_by_another_program_fails(bundle: Path, tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for name, data in unpack(bundle.read_bytes()).items():
                archive.writestr(name, data)
        (tmp_path / "b.zip").write_bytes(packed.getvalue())
        assert not checked(tmp_path / "b.zip").ok


def invoked(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


def test_the_command_says_what_the_certificate_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_small(tmp_path / "run")
    said = invoked("certify", str(run)).stdout.splitlines()
    assert said == [f"{run}/certificate.zip", "verdict: certified: a-w1"]
    monkeypatch.setitem(MODELS, "a-w1", MODELS["a-w2"])
    run = write_small(tmp_path / "other", seeds=2)
    words = "verdict: uncertified: all_excluded"
    said = invoked("certify", str(run)).stdout.splitlines()
    assert said[1:] == [f"m--seed0: {words}", f"m--seed1: {words}"]
    printed = json.loads(invoked("certify", str(run), "--json").stdout)
    assert printed["verdicts"]["m--seed1"]["reason"] == "all_excluded"


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
    signed_bundle: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    # Modules that come first and fail, for the command and for the process it examines in.
    for name in ("torch", "transformers", "safetensors", "tokenizers"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    places = [str(tmp_path), str(Path(palimpsest.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )

    assert "torch is not here" in ran("-c", "import torch").stderr
    done = ran("-m", "palimpsest.cli", "verify", str(signed_bundle), "--key", str(keys[1]))
    assert done.returncode == 0, done.stderr
    assert "Certified: a-w1" in done.stdout and "Answer: ok" in done.stdout


def test_the_program_in_the_documentation_checks_a_bundle(bundle: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]

    def ran(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", program, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = ran(bundle)
    assert done.returncode == 0, done.stderr
    assert checked(bundle).terms in done.stdout
    members = unpack(bundle.read_bytes())
    changed = tmp_path / "changed.zip"
    changed.write_bytes(pack(members | {"rules.json": members["rules.json"][:-1]}))
    assert "AssertionError" in ran(changed).stderr


# -- a process of its own ------------------------------------------------------------------------


def test_an_examination_that_breaks_off_or_never_ends_is_a_failure(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    for script, said in (
        ("kill -ABRT $$", "broke off (exit code -6"),
        ("echo '{}'", "broke off (exit code 0"),
        ('echo \'{"answer": "ok"}\'', "broke off"),
        ("echo 'Out of memory' >&2; exit 1", "Out of memory"),
        ("sleep 60", "not done within"),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(apart, "SECONDS", 1 if "sleep" in script else 60)
        verification = verify(bundle)
        assert not verification.ok
        assert not verification.verdicts
        assert verification.failure is not None and said in verification.failure.what


def test_a_module_beside_the_bundle_is_not_run(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "json", "pyarrow", "palimpsest"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert verify(bundle).ok
    assert not (tmp_path / "canary").exists()


def test_the_answer_of_the_separate_process_arrives_whole(
    signed_bundle: Path, keys: tuple[Path, Path]
) -> None:
    inside = examine(signed_bundle.read_bytes(), read_public(keys[1]))
    assert verify(signed_bundle, keys[1]) == inside


def test_the_page_of_a_run_opens_from_its_bundle(
    bundle: Path, run_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page"
    done = CliRunner().invoke(app, ["verify", str(bundle), "--page", str(out)])
    assert done.exit_code == 0, done.output
    again = write_report(run_folder, tmp_path / "again")
    assert (out / "index.html").read_bytes() == again.read_bytes()
    assert (out / "tables" / "candidates.csv").exists()
    done = CliRunner().invoke(app, ["verify", str(bundle), "--page", str(out)])
    assert "expected a new folder" in str(done.exception)
