"""Checkpoints are read as often as needed, and what computes is what was fixed."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audit.audit_models import audit_values
from tests.checkpoints import WEIGHTS, change_weights, edit

from palimpsest.api import judge
from palimpsest.cell.audit import AuditTask
from palimpsest.cell.launch import RunOptions
from palimpsest.cell.planned import AUDIT as CELL
from palimpsest.config.commands import AuditConfig
from palimpsest.config.load import load_config
from palimpsest.errors import DriftError, StudyFailed
from palimpsest.models import stored
from palimpsest.models.net import WholeNet
from palimpsest.run.store import Run
from palimpsest.stats.rules import CONTROL_MIXTURES, Rules


@pytest.fixture
def values(tiny_audit, tmp_path):
    """The arguments of an audit of models of its own."""
    world = Path(shutil.copytree(tiny_audit.parent / "models", tmp_path / "models")).parent
    shutil.copytree(tiny_audit.parent / "facts", world / "facts")
    return audit_values(world, learning_rate=None, out=str(tmp_path / "run"))


def task(values: dict[str, Any]) -> AuditTask:
    checked = AuditTask(load_config(AuditConfig, values))
    checked.check()
    return checked


def refused(checked: AuditTask) -> None:
    """Run the audit, expecting that a model is not the one that was checked."""
    with pytest.raises(StudyFailed):
        judge(checked, RunOptions())
    failure = Run.open(checked.folder).cell(CELL).failure()
    assert failure is not None and failure.kind == DriftError.kind


def test_an_audit_reads_each_checkpoint_as_often_as_it_must(values, monkeypatch):
    """Once before its terms are fixed, once when it is measured, and each mixture both its parents;
    beside that the base to start with, for what the injected model says, for the check of their
    roles, and for the learning rate that is chosen on a reference."""
    read = 0

    def counted(name: str, tensor: stored.Stored, *into: torch.Tensor) -> stored.Content:
        nonlocal read
        read += math.prod(tensor.shape) * stored.TYPES[tensor.dtype].itemsize
        return real(name, tensor, *into)

    real = stored.read_tensor
    monkeypatch.setattr(stored, "read_tensor", counted)
    judge(task(values), RunOptions())
    header = stored.read_header(Path(values["base"]) / WEIGHTS).values()
    whole = sum(math.prod(t.shape) * stored.TYPES[t.dtype].itemsize for t in header)
    models = 2 + len(values["candidates"]) + len(values["references"])
    mixtures = CONTROL_MIXTURES * len(Rules().control_shares)
    assert models + 1 < read / whole <= 2 * models + 2 * mixtures + 5


@pytest.mark.parametrize(
    ("who", "file"), [("base", WEIGHTS), ("base", "config.json"), ("injected", WEIGHTS)]
)
def test_a_model_that_changes_after_the_check_computes_nothing(values, monkeypatch, who, file):
    checked, place = task(values), Path(values[who])
    if file == WEIGHTS:
        change_weights(place, lambda state: state["model.norm.weight"][0].add_(1e-3))
    else:
        edit(place, file, note=1)
    monkeypatch.setattr(WholeNet, "logits", lambda *_: pytest.fail("a model was asked"))
    refused(checked)


def test_a_candidate_that_changes_after_the_check_is_not_measured(values, monkeypatch):
    values |= {"references": [], "learning_rate": 1e-3}
    checked = task(values)
    change_weights(
        Path(values["candidates"]["retrained"]),
        lambda state: state["model.norm.weight"].copy_(torch.full((64,), 7.0)),
    )
    logits = WholeNet.logits

    def asked(self: WholeNet, *given: Any) -> torch.Tensor:
        norm = self.params["model.norm.weight"]
        assert not torch.equal(norm, torch.full_like(norm, 7.0)), "the changed model was asked"
        return logits(self, *given)

    monkeypatch.setattr(WholeNet, "logits", asked)
    refused(checked)
