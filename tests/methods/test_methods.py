"""Methods are found by name, by entry point and by class, and their knobs are checked."""

import sys
from pathlib import Path

import pytest
from toys import answers_of, transformer_context

from palimpsest.config.plan import MethodGrid
from palimpsest.errors import MethodError
from palimpsest.methods import (
    BUILT_IN,
    EXTENDED,
    PAPER,
    candidates,
    describe,
    method_class,
    names,
    title,
)
from palimpsest.methods.running import run_group

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_method_of_ones_own_takes_thirty_lines_and_runs(monkeypatch):
    assert len((EXAMPLES / "my_method.py").read_text().splitlines()) <= 30
    monkeypatch.syspath_prepend(str(EXAMPLES))
    grid = MethodGrid("my_method:MyMethod", (("weight", (3, 12.0)),))
    methods = candidates([grid])
    assert [title(method) for method in methods] == ["my_method-w3", "my_method-w12"]
    context = transformer_context("llama", stacked=True, steps=30, learning_rate=1e-2)
    before = answers_of("llama", context, context.injected)
    for state in run_group(context, methods):
        forget = sum(text.scored for text in context.forget.texts)
        after = answers_of("llama", context, state)
        entropy = [-(said.exp() * said)[:forget].sum(-1).mean() for said in (before, after)]
        assert entropy[1] > entropy[0] + 0.05


def test_a_class_in_the_working_folder_can_be_named(monkeypatch, tmp_path):
    source = (EXAMPLES / "my_method.py").read_text()
    (tmp_path / "of_my_own.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert method_class("of_my_own:MyMethod").name == "my_method"


@pytest.mark.parametrize(
    ("declared", "other"),
    [*(('"my_method"', repr(name)) for name in ("reference", "a b", "", "../up")),
     ('"suppresses"', '"deletes"')],
)  # fmt: skip
def test_a_name_or_kind_that_tables_or_files_cannot_hold_is_refused(
    declared, other, monkeypatch, tmp_path
):
    source = (EXAMPLES / "my_method.py").read_text()
    assert declared in source
    (tmp_path / "ill_named.py").write_text(source.replace(declared, other))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ill_named", raising=False)
    with pytest.raises(MethodError):
        method_class("ill_named:MyMethod")


def install(folder: Path, points: str) -> None:
    """Put a distribution with these entry points into a folder of the import path."""
    info = folder / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[palimpsest.methods]\n{points}\n")


def test_an_installed_method_is_found_by_its_entry_point_and_takes_no_built_in_name(
    monkeypatch, tmp_path
):
    (tmp_path / "third_party.py").write_text((EXAMPLES / "my_method.py").read_text())
    points = ("uniform = third_party:MyMethod", "broken = third_party_gone:Method")
    install(tmp_path, "\n".join([*points, "npo = third_party:MyMethod"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names() == (*BUILT_IN, "broken", "uniform")
    assert method_class("npo").__module__ == "palimpsest.methods.npo"
    broken, uniform = describe()[-2:]
    assert uniform.pool == "plug-in" and uniform.knobs == {"weight": 12.0}
    assert broken.name == "broken" and not broken.knobs


def test_every_method_says_what_it_is():
    rows = {row.name: row for row in describe() if row.pool != "plug-in"}
    assert set(rows) == set(PAPER) | set(EXTENDED)
    for name, row in rows.items():
        assert method_class(name).name == name
        assert row.pool == ("paper" if name in PAPER else "extended")
        assert row.summary and (row.citation or name == "rollback")
    assert rows["npo"].knobs == {"weight": 12.0, "beta": 0.1, "rate": 1.0}


@pytest.mark.parametrize(
    "name",
    [
        *("nope", "no.such.module:Class", "json:Nothing", ":Class", "json:JSONDecoder"),
        "palimpsest.config.plan:Plan",
    ],
)
def test_what_is_not_a_method_is_refused_by_name(name, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(MethodError, match=f"method '{name}'"):
        method_class(name)


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("npo", "betta", 1),
        ("npo", "weight", "much"),
        ("npo", "weight", True),
        ("npo", "weight", float("nan")),
        ("ga", "weight", -3),
        ("gate_mask", "sparsity", 1.0),
        ("dpo", "refusal", " "),
        ("rollback", "weight", 1),
    ],
)
def test_knobs_that_cannot_be_are_named(name, knob, value):
    with pytest.raises(MethodError, match=rf"methods\.{name}(\.|: ){knob}"):
        candidates([MethodGrid(name, ((knob, (value,)),))])


def test_numbers_may_be_text_and_two_candidates_of_one_name_are_refused():
    (method,) = candidates([MethodGrid("gate_mask", (("score_rate", ("2e-5",)),))])
    assert method.score_rate == 2e-5
    with pytest.raises(MethodError, match="ga-w3"):
        candidates([MethodGrid("ga", (("weight", (3, 3.0)),))])


def test_labels_are_fit_for_file_names():
    (method,) = candidates([MethodGrid("dpo", (("refusal", ("I don't / know",)),))])
    assert title(method) == "dpo-w1-refusalI_don_t_know"


def test_refusals_continue_the_forget_prompts():
    context = transformer_context("gpt2")
    for plain, refused in zip(
        context.forget.texts, method_class("dpo")().refuse(context), strict=True
    ):
        assert refused.ids[: refused.start] == plain.ids[: plain.start]
        assert context.tokenizer.decode(refused.ids[refused.start :]) == "not known"
