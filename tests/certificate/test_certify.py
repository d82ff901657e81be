"""What ``certify`` writes, when it refuses, and what ``verify`` says about its work."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from forgery import value
from tests.command import palimpsest
from tests.made_runs import AUDIT, AUDIT_SETTINGS, NONCE, RECIPE, STUDY, write_audit, write_study

from palimpsest.certificate import (
    Verification,
    certify,
    read_verdicts,
    verify,
    write_bundle_page,
    write_records,
)
from palimpsest.certificate.bundle import PREDICATE_TYPE, SCOPE, unpack
from palimpsest.certificate.checks import CHECKS, examine
from palimpsest.certificate.signature import read_public
from palimpsest.cli import UNREAD
from palimpsest.errors import BundleError, InputError, SealError
from palimpsest.facts.nonce import RELATIONS
from palimpsest.facts.sealed import read_pool
from palimpsest.report.documents import verdict_document
from palimpsest.report.page import write_report
from palimpsest.report.results import read_run
from palimpsest.run.files import digest, file_digest
from palimpsest.run.store import Run
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import UNPROVED


def checked(bundle: Path, key: Path | None = None) -> Verification:
    """Return the verification of a bundle, without the cost of a process of its own."""
    verified = examine(bundle.read_bytes(), None if key is None else read_public(key))
    assert verified.ok, verified.failure
    return verified


def said(bundle: Path, check: str) -> str:
    """Return what one check of a sound bundle says."""
    return next(c.what for c in checked(bundle).checks if c.name == check)


def test_an_untouched_bundle_verifies_and_says_what_that_means(signed_bundle, keys):
    verified = verify(signed_bundle, keys[1])
    assert verified.answer == "ok" and verified.ok
    assert [check.name for check in verified.checks] == [check.__name__ for check in CHECKS]
    assert {check.state for check in verified.checks} == {"ok"}
    assert list(verified.verdicts) == [STUDY]
    assert all(line in verified.lines() for line in SCOPE) and UNPROVED in SCOPE
    told = verified.to_json()
    assert told == json.loads(json.dumps(told)) and told["answer"] == "ok"
    assert verified == examine(signed_bundle.read_bytes(), read_public(keys[1]))


def test_the_verdicts_are_those_of_the_run_folder(tmp_path):
    run = write_study(tmp_path / "run", seeds=(0, 1))
    stated = read_verdicts(certify(run, tmp_path / "b.zip"))
    assert stated.keys() == {STUDY, STUDY.replace("seed0", "seed1")}
    for cell, verdict in read_run(run).judged:
        whole = json.loads(json.dumps(verdict_document(verdict)))
        assert stated[cell.id] == {key: whole[key] for key in stated[cell.id]}


def test_a_bundle_is_a_zip_file_with_the_runs_own_bytes(bundle, run_folder, tmp_path):
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == sorted(archive.namelist())
        for name in ("terms.json", "rosters.json", f"cells/{STUDY}/cell.json"):
            assert archive.read(name) == (run_folder / name).read_bytes()
    again = certify(run_folder, tmp_path / "deep" / "again.zip")
    assert again.read_bytes() == bundle.read_bytes()


def test_the_statement_is_in_toto_and_says_what_counts(audit_members):
    stated = value(audit_members, "statement.json")
    assert stated["_type"] == "https://in-toto.io/Statement/v1"
    assert stated["predicateType"] == PREDICATE_TYPE
    listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
    assert listed == {n: digest(d) for n, d in audit_members.items() if n != "statement.json"}
    predicate = stated["predicate"]
    assert predicate["tried"] == 2 and predicate["lists"] == 1 and predicate["reused"] == []
    assert predicate["custom_rules"] == {} and predicate["unmeasured_axes"] == ["reversed"]
    cell = predicate["cells"][AUDIT]
    assert cell["verdict"]["candidate"] == "good" and cell["verdict"]["status"] == "certified"
    assert cell["models"]["good"] == digest(b"good")
    assert cell["recipes"] == dict.fromkeys(["injected", *(f"reference-{n}" for n in range(6))],
                                            RECIPE)  # fmt: skip


def test_custom_rules_are_listed_and_a_certificate_is_called_so(tmp_path):
    rules = replace(Rules(), alpha=0.1, certify_above=0.15).without("reversed")
    bundle = certify(write_audit(tmp_path / "run", rules=rules))
    verified = checked(bundle)
    assert verified.custom_rules == {"alpha": [0.05, 0.1], "certify_above": [0.0, 0.15]}
    assert verified.to_json()["custom_rules"] == verified.custom_rules
    assert said(bundle, "rules").startswith("CUSTOM RULES: alpha 0.1 (default 0.05), certify_above")
    assert verified.verdicts[AUDIT].startswith("Certified under custom rules: good")
    stated = value(unpack(bundle.read_bytes()), "statement.json")["predicate"]
    assert stated["custom_rules"] == verified.custom_rules
    page = write_bundle_page(replace(verified, data=bundle.read_bytes()), tmp_path / "page")
    assert "under custom rules" in page.read_text()
    card, _ = write_records(bundle)
    assert "under custom rules" in card.read_text()


def test_later_lists_are_said_and_dropped_candidates_too(tmp_path):
    run = write_audit(tmp_path / "run")
    write_audit(run, candidates=("good", "bad", "third"))
    text = said(certify(run), "rosters")
    assert text.startswith("3 candidates") and "2 lists" in text and "ATTENTION" not in text
    write_audit(run, candidates=("good",))
    text = said(certify(run), "rosters")
    assert text.startswith("3 candidates") and "3 lists" in text
    assert "ATTENTION: 2" in text and "'bad'" in text and "'third'" in text


def test_what_a_reader_would_misread_in_silence_stands_in_the_verdict(tmp_path):
    """Left-out references, weaker settings, and candidates that came after the draw."""
    plain = write_audit(tmp_path / "plain", beacon="lottery")
    (text,) = read_run(plain).cells[0].verdict.conditions  # type: ignore[union-attr]
    assert "lottery" in text
    weak = {"chunks": 1, "engine": AUDIT_SETTINGS["engine"] | {"lora": 1}}
    for candidates in (("good", "bad"), ("good", "bad", "third")):
        run = write_audit(tmp_path / "run", candidates, exclude=("reference-1",), **weak)
    words = checked(certify(run)).verdicts[AUDIT]
    verdict = read_run(run).cells[0].verdict
    assert verdict is not None and len(verdict.conditions) == 3
    assert all(condition in words for condition in verdict.conditions)
    for named in ("reference-1", "chunks 1", "lora 1", "third"):
        assert named in words


@pytest.mark.parametrize("evidence", [None, 2.9])
def test_an_audits_verdict_is_the_one_of_its_folder_headroom_and_all(evidence, tmp_path):
    run = write_audit(tmp_path / "run", evidence=evidence)
    held = unpack(certify(run).read_bytes())
    verdict = read_run(run).cells[0].verdict
    assert verdict is not None and (verdict.headroom is not None) == (evidence is not None)
    assert read_verdicts(run / "certificate.zip")[AUDIT]["p"] == verdict_document(verdict)["p"]
    assert checked(run / "certificate.zip").verdicts[AUDIT] == verdict.paragraph()
    assert (f"cells/{AUDIT}/headroom.parquet" in held) == (evidence is not None)


def test_an_unfinished_or_damaged_run_is_refused_by_name(tmp_path):
    second = STUDY.replace("seed0", "seed1")
    run = write_study(tmp_path / "run", seeds=(0, 1), skip=(second,))
    with pytest.raises(InputError, match=second):
        certify(run)
    assert not (run / "certificate.zip").exists()
    whole = write_audit(tmp_path / "whole")
    table = whole / "cells" / AUDIT / "items.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"items\.parquet"):
        certify(whole)
    assert palimpsest("certify", str(run)).returncode == 2
    assert palimpsest("certify", str(whole)).returncode == 1


def test_a_run_without_verdicts_cannot_be_certified(tmp_path, run_folder):
    terms = replace(Run.open(run_folder).terms, kind="unlearn")
    Run.create_or_resume(tmp_path / "run", terms, [])
    with pytest.raises(InputError):
        certify(tmp_path / "run")


def test_a_pool_that_was_never_opened_needs_no_reveal(tmp_path):
    bundle = certify(write_study(tmp_path / "run", known_label=()))
    assert "reveal.json" not in unpack(bundle.read_bytes())
    assert checked(bundle).ok


def test_an_own_pool_is_revealed_from_its_file_and_must_be_the_sealed_one(tmp_path):
    file = tmp_path / "pool.jsonl"
    new = "Quite new words ask about {subject} and the"
    lines = [{"relation": r, "template": f"{new} {r}"} for r in RELATIONS]
    file.write_text("\n".join(json.dumps(line) for line in [{"nonce": NONCE}, *lines]) + "\n")
    run = write_study(tmp_path / "run", pool=read_pool(file))
    with pytest.raises(SealError, match="--pool"):
        certify(run)
    assert "public" not in said(certify(run, tmp_path / "own.zip", pool_path=file), "seal")
    file.write_text(file.read_text().replace("Quite new", "Rather new"))
    with pytest.raises(SealError):
        certify(run, tmp_path / "other.zip", pool_path=file)


def test_what_is_not_a_file_is_bad_input_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent.zip", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError):
            verify(path)
    with pytest.raises(BundleError):
        examine(b"PK\3\4").require("b.zip")


def test_the_commands_say_what_the_certificate_is_of(tmp_path, bundle):
    run = write_audit(tmp_path / "run")
    done = palimpsest("certify", str(run))
    names = ("certificate.zip", "certificate.card.md", "certificate.eee.json")
    assert done.stdout.splitlines() == [*(f"{run}/{name}" for name in names), "certified: good"]
    other = write_study(tmp_path / "two", seeds=(0, 1))
    printed = json.loads(palimpsest("certify", str(other), "--json").stdout)
    assert printed["verdicts"][STUDY]["candidate"] == "ga-w3" and len(printed["verdicts"]) == 2
    done = palimpsest("verify", str(bundle), "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    keys = {"answer", "bundle", "not_reached", "checks", "verdicts", "stated", "terms", "signer"}
    assert keys <= told.keys() and told["bundle"] == file_digest(bundle)
    assert told["stated"][STUDY]["candidate"] == "ga-w3"
    (tmp_path / "b.zip").write_bytes(b"PK")
    assert palimpsest("verify", str(tmp_path / "b.zip")).returncode == 1
    done = palimpsest("verify", str(run))
    assert done.returncode == 2 and f"palimpsest verify {run}/certificate.zip" in done.stderr


@pytest.mark.parametrize("output", [">&-", ">/dev/full", "| true", ">&- 2>&-"])
def test_an_answer_that_nobody_reads_is_not_one_of_failed(bundle, output):
    program = "from palimpsest.cli import main; main()"
    line = f"set -o pipefail; {sys.executable} -c '{program}' verify {bundle} {output}"
    assert subprocess.run(["bash", "-c", line], stderr=subprocess.DEVNULL).returncode == UNREAD


def test_the_page_of_a_run_is_made_from_the_bytes_that_were_verified(bundle, run_folder, tmp_path):
    copy = tmp_path / "copy.zip"
    copy.write_bytes(bundle.read_bytes())
    verified = verify(copy)
    copy.write_bytes(b"something else by now")
    page = write_bundle_page(verified, tmp_path / "page")
    results = replace(read_run(run_folder), path=tmp_path / "again")
    again = write_report(results, verified=verified.heading())
    assert str(verified.terms) in page.read_text() and file_digest(bundle) in page.read_text()
    assert page.read_bytes() == again.read_bytes()
    with pytest.raises(InputError):
        write_bundle_page(verified, tmp_path / "page")
    with pytest.raises(BundleError):
        write_bundle_page(verify(copy), tmp_path / "none")


def test_what_travels_beside_a_bundle_says_what_the_verdict_says(run_folder, tmp_path):
    bundle = tmp_path / "b.zip"
    done = palimpsest("certify", str(run_folder), "--out", str(bundle))
    assert done.returncode == 0, done.stderr
    places = [Path(line) for line in done.stdout.splitlines()[1:3]]
    assert places == [tmp_path / "b.card.md", tmp_path / "b.eee.json"]
    card, record = places[0].read_text(), json.loads(places[1].read_text())
    verdict = read_run(run_folder).cells[0].verdict
    assert verdict is not None and verdict.paragraph() in card
    assert digest(bundle.read_bytes()) in card and f"palimpsest verify {bundle.name}" in card
    (entry,) = yaml.safe_load(card.split("---")[1])["model-index"]
    values = {metric["type"]: metric["value"] for metric in entry["results"][0]["metrics"]}
    finding = verdict.finding(entry["name"])
    assert finding.comparison is not None and finding.left is not None
    assert values["certified"] is True and values["p_value"] == finding.comparison.p
    # The other one has the same numbers, in the schema of Every Eval Ever.
    about = record["source_metadata"]["additional_details"]
    assert about["digest"] == digest(bundle.read_bytes())
    assert record["model_info"]["name"] == verdict.candidate
    scores = {
        entry["metric_config"]["metric_id"].partition(".")[2]: entry["score_details"]
        for entry in record["evaluation_results"]
    }
    assert {name: score["score"] for name, score in scores.items()} == {
        "certified": 1.0,
        "p": finding.comparison.p,
        "at_most": pytest.approx(finding.left.bound, abs=1e-6),
        "as_far_as_mixture": pytest.approx(finding.scale.share, abs=1e-6),  # type: ignore[union-attr]
    }
    assert {score["details"]["label"] for score in scores.values()} == {"restored"}
    schema = pytest.importorskip("every_eval_ever", reason="needs every-eval-ever for its schema")
    file = Path(schema.__file__).parent / "schemas" / "eval.schema.json"
    pytest.importorskip("jsonschema").validate(record, json.loads(file.read_text()))


def test_of_several_cells_one_is_named_for_the_model_card(tmp_path):
    run = write_study(tmp_path / "run", seeds=(0, 1))
    bundle = certify(run)
    assert write_records(bundle) == []
    card, record = write_records(bundle, STUDY)
    assert "ga-w3" in card.read_text() and STUDY not in record.read_text()
    with pytest.raises(InputError, match="'x'"):
        write_records(bundle, "x")
