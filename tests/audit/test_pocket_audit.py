"""The certificate by the command: yes to a retrained model, no to every other one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.audit.audit_models import mix
from tests.audit.conftest import BASE, QUICK
from tests.command import palimpsest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FRESH = ("fresh-0", "fresh-1", "fresh-2")
CANDIDATES = (*FRESH, "ga", "kl_reversion", "npo", "left-25", "injected-again")


def audit(
    folder: Path,
    out: Path,
    references: Sequence[Path],
    candidates: Sequence[str] = CANDIDATES,
    *more: str,
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document of ``palimpsest audit``."""
    words = ["audit", "--base", BASE, "--injected", f"{folder}/injected", "--json", "--workers=2"]
    words += [f"--reference={place}" for place in references]
    words += [f"--candidate={n}={folder}/{n.removesuffix('-again')}" for n in candidates]
    for key in ("forget", "retain", "probes"):
        words += [f"--{key}={QUICK}/{key.removesuffix('s')}.jsonl"]
    done = palimpsest(*words, f"--general={QUICK}/general.txt", f"--out={out}", *more)
    assert done.returncode in (0, 3), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


@pytest.fixture(scope="module")
def runs(pocket_models, tmp_path_factory):
    """The audits with 5, 9 and 20 references, each of which takes over what is measured."""
    root, found, earlier = tmp_path_factory.mktemp("audits"), {}, ()
    for count in (5, 9, 20):
        places = [pocket_models / "models" / f"{n:02d}" for n in range(count)]
        found[count] = audit(pocket_models, root / f"{count}", places, CANDIDATES, *earlier)
        earlier = (f"--reuse={root / str(count)}",)
    return found | {0: root}


@pytest.mark.parametrize("references", [5, 9, 20])
def test_a_fresh_retraining_is_certified_and_nothing_else(runs, references):
    code, document = runs[references]
    clearing = [name for name, found in document["candidates"].items() if found["clears"]]
    assert document["candidate"] in FRESH and set(clearing) <= set(FRESH), document["paragraph"]
    assert len(clearing) >= 2  # each retraining is refused with a probability of alpha
    assert code == 0 and document["references"] == references
    assert document["detection_limit"] <= 0.25


@pytest.mark.parametrize("odd", ["short/00", "injected-in-disguise"])
@pytest.mark.parametrize("count", [5, 20])
def test_one_odd_reference_is_named_and_nothing_is_certified(
    pocket_models, runs, tmp_path, odd, count
):
    place = pocket_models / odd
    if odd != "short/00":
        place = _disguised(pocket_models, tmp_path / "disguised")
    places = [pocket_models / "models" / f"{n:02d}" for n in range(count - 1)] + [place]
    candidates = ("fresh-0", "left-25")
    reuse = f"--reuse={runs[0] / '20'}"
    code, document = audit(pocket_models, tmp_path / "run", places, candidates, reuse)
    assert code == 3 and document["status"] == "uncertified"
    assert document["reason"] == "references" and document["because"] == "odd"
    assert document["homogeneity"]["reference"].startswith(f"reference-{place.name}")


def _disguised(folder: Path, target: Path) -> Path:
    """Return the injected model with one weight changed a little, so that it is no copy."""
    mix(folder / "injected", folder / "models" / "00", target, 1e-4)
    return target


def test_the_injected_model_as_a_reference_is_refused(pocket_models, tmp_path):
    words = _refused(pocket_models, tmp_path, pocket_models / "injected")
    assert "injected" in words


def test_a_reference_given_twice_is_refused_though_its_metadata_differ(pocket_models, tmp_path):
    words = _refused(pocket_models, tmp_path, pocket_models / "copied")
    assert str(pocket_models / "models" / "00") in words


def _refused(folder: Path, tmp_path: Path, place: Path) -> str:
    words = ["audit", "--base", BASE, "--injected", f"{folder}/injected"]
    words += [f"--candidate=fresh={folder}/fresh-0", f"--general={QUICK}/general.txt"]
    words += [f"--{key}={QUICK}/{key}.jsonl" for key in ("forget", "retain")]
    words += [f"--probes={QUICK}/probe.jsonl", f"--references-folder={folder}/models"]
    done = palimpsest(*words, f"--reference={place}", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2 and "--reference" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()
    return done.stderr
