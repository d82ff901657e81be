"""The cost model: against measurements, and as the documents print it."""

import importlib.util
from pathlib import Path

import pytest

from palimpsest.cost import Size, Step, training

DOCS = Path(__file__).parents[2] / "docs"
SMOLLM2 = Size(134_515_008, 30, 576, 49_152)


@pytest.mark.parametrize(("texts", "measured"), [(4, 2.69e9), (16, 3.46e9)])
def test_memory_is_within_a_fifth_of_what_smollm2_took(texts: int, measured: float) -> None:
    """Peak resident memory of a process on the CPU; docs/gpu.md has the numbers."""
    assert training(SMOLLM2, Step(28 * texts, 27 * texts)).device == pytest.approx(
        measured, rel=0.2
    )


def test_what_saves_memory_and_what_it_costs() -> None:
    step = Step(4096, 64)
    plain = training(SMOLLM2, step, device="cuda", dtype="bfloat16")
    frugal = training(SMOLLM2, step, device="cuda", dtype="bfloat16", checkpointing=True)
    away = training(SMOLLM2, step, device="cuda", dtype="bfloat16", optimizer="host")
    assert frugal.device < plain.device
    assert plain.device - away.device == away.host == 12 * SMOLLM2.parameters


def test_the_documents_have_the_rows_that_are_printed() -> None:
    spec = importlib.util.spec_from_file_location("scale_table", DOCS / "scale_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    few, many = (module.audit(SMOLLM2, references=count) for count in (3, 19))
    assert many.memory == few.memory and many.seconds > 2 * few.seconds
    for name, lines in (("gpu.md", module.commands()), ("scale.md", module.audits())):
        text = (DOCS / name).read_text(encoding="utf-8")
        assert not [line for line in lines if line not in text]
