"""What a cell should hold follows from the terms and the list of models alone, without torch."""

from dataclasses import replace

import pytest

from palimpsest.cell.planned import planned_cell, planned_cells
from palimpsest.cell.study import StudyTask
from palimpsest.config.load import changed
from palimpsest.config.presets import preset
from palimpsest.errors import InputError
from palimpsest.stats.models import Role

PLAN = changed(preset("demo"), {"methods": [{"name": "ga", "weight": [1.0, 2.0]}]})


def test_a_study_lists_its_models_from_its_terms():
    specs = StudyTask(PLAN)
    (cell,) = specs.terms().cells
    planned, spec = planned_cell(*specs.fixed, cell), specs.plan(cell)
    own = [model for model in planned.models if not model.method and model.role is not Role.BASE]
    assert [m for m in own if m.role is not Role.KNOWN_LABEL] == [e.model for e in spec.models]
    assert [model.knobs["weight"] for model in planned.of(Role.CANDIDATE)] == [1.0, 2.0]
    assert sum(model.same_draw for model in planned.models) == 1
    assert planned.rules == PLAN.rules and planned.facts["probe"] == PLAN.facts.probes
    references = {model.name for model in planned.of(Role.REFERENCE)}
    assert {model.of for model in planned.of(Role.CONTROL)} <= references


def test_terms_that_list_other_cells_are_refused():
    terms, _ = StudyTask(PLAN).fixed
    for cells in ((), ("other",), (*terms.cells, "other")):
        with pytest.raises(InputError):
            planned_cells(replace(terms, cells=cells))
