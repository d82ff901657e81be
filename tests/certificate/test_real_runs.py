"""Runs of the real engine are certified: what it stores is what the checks expect."""

import json
from pathlib import Path

import pytest
from tests.audit.audit_models import write_facts

import palimpsest
from palimpsest.certificate import certify
from palimpsest.certificate.bundle import unpack
from palimpsest.certificate.checks import examine
from palimpsest.run.store import Run


def said(bundle: Path) -> dict[str, str]:
    """Return what each check of a sound bundle says."""
    verified = examine(bundle.read_bytes())
    assert verified.ok, verified.failure
    return {check.name: check.what for check in verified.checks}


def test_a_study_is_certified(tiny_study, tmp_path):
    text = said(certify(tiny_study, tmp_path / "b.zip"))
    assert text["rosters"].startswith("3 candidates") and "public" in text["seal"]


@pytest.mark.slow
def test_an_audit_is_certified_with_what_it_took_over_from_another(tmp_path):
    facts = write_facts(tmp_path / "facts")
    general = {"general": "pocket", "retain": facts["retain"], "forget": facts["forget"]}
    made = tmp_path / "models"
    palimpsest.retrain(
        base="pocket/qwen2-s", with_forget=True, draws=6, steps=20, out=str(made), **general
    )
    asked = general | {"probes": facts["probes"], "steps": 5, "learning_rate": 1e-4}
    asked |= {"base": "pocket/qwen2-s", "injected": made / "injected"}
    asked |= {"references": [made / f"{n:02d}" for n in range(5)]}
    palimpsest.audit(candidates={"a": made / "05"}, out=tmp_path / "one", **asked)
    bundle = certify(tmp_path / "one")
    assert "--reuse" not in said(bundle)["cells"]
    stated = json.loads(unpack(bundle.read_bytes())["statement.json"])["predicate"]
    recipe = stated["cells"]["audit"]["recipes"]["injected"]
    assert recipe["steps"] == 20 and recipe["data"]["retain facts"].startswith("sha256:")
    # Another run that excludes a reference measures nothing again, and says where it is from.
    more = {"candidates": {"a": made / "05"}, "exclude": ["reference-00"]}
    palimpsest.audit(out=tmp_path / "two", reuse=str(tmp_path / "one"), **asked | more)
    bundle = certify(tmp_path / "two")
    assert "--reuse" in said(bundle)["cells"]
    stated = json.loads(unpack(bundle.read_bytes())["statement.json"])["predicate"]
    assert stated["reused"] == [Run.open(tmp_path / "one").rosters[-1].digest]
