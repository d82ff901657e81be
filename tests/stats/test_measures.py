"""A cell's measures follow the stated formulas, and a bad score names its model and fact."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from palimpsest.errors import ScoreError
from palimpsest.stats.measures import measure_cell, read_curves
from palimpsest.stats.models import Model, Role

PROBE = [3.0] * 6
Table = dict[str, np.ndarray]


@dataclass
class Made:
    """What a made-up model scores; anything left out is not measured."""

    forget: list[float]
    probe: list[float]
    retain: float | None = 1.0
    general: float | None = 2.0
    oracle_kl: float | None = None
    residual: tuple[float, float] | None = None
    falls: list[float] | None = None
    """Held-out forget NLL per chunk of the re-acquisition log."""


def records_of(names: Iterable[str]) -> dict[str, Model]:
    """What made-up models are, from the names that tests give them."""
    records: dict[str, Model] = {}
    for name in names:
        kind, _, number = name.partition("-")
        if kind == "reference":
            records[name] = Model(name, Role.REFERENCE, seed_no=int(number or 0))
        else:
            role = Role(name) if name in ("base", "injected") else Role.CANDIDATE
            records[name] = Model(name, role)
    return records


def tables(
    models: Mapping[str, Made], pool: str = "evaluation", templates: int = 2
) -> tuple[Table, Table]:
    rows: list[tuple] = []
    curves: list[tuple] = []

    def row(model, stage, which, fact, where, template, nll, tokens=2, reference=np.nan, kl=np.nan):
        scores = (nll * tokens, tokens, reference * tokens, kl * tokens)
        rows.append((model, stage, which, fact, where, template, *scores))

    for name, made in models.items():
        for which, values in (("forget", made.forget), ("probe", made.probe)):
            for index, nll in enumerate(values):
                for template in range(templates):
                    wobble = 0.25 * (template - (templates - 1) / 2)  # cancels in the mean
                    row(name, "forward", which, f"{which[0]}{index}", pool, template, nll + wobble)
        kl = np.nan if made.oracle_kl is None else made.oracle_kl
        row(name, "forward", "forget", "f0", "trained", 0, 1.0, reference=kl)
        if made.retain is not None:
            for index in range(3):
                row(name, "forward", "retain", f"r{index}", "cloze", 0, made.retain, reference=kl)
        if made.general is not None:
            row(name, "forward", "general", "g0", "general", 0, made.general, tokens=9)
        if made.residual is not None:
            retain, general = made.residual
            row(name, "reacquired", "retain", "r0", "cloze", 0, 1.0, kl=retain)
            row(name, "reacquired", "general", "g0", "general", 0, 1.0, tokens=9, kl=general)
        for chunk, nll in enumerate(made.falls or ()):
            curves.append((name, chunk, 3 * chunk, nll, nll, 1.0, 0.1, 0.1))

    text = ("model", "stage", "set", "fact", "pool")
    names = (*text, "template", "nll_sum", "tokens", "kl_reference", "kl_injected")
    items = {
        column: np.array(values, dtype=object if column in text else None)
        for column, values in zip(names, zip(*rows))
    }
    names = ("model", "chunk", "step", "forget_trained_nll", "forget_heldout_nll", "retain_nll")
    names += ("residual_retain", "residual_general")
    columns = list(zip(*curves)) or [()] * len(names)
    log = {
        column: np.array(values, dtype=object if column == "model" else None)
        for column, values in zip(names, columns)
    }
    return items, log


@pytest.fixture
def models():
    return {
        "base": Made([3.0, 4.0], PROBE),
        "injected": Made([1.0, 1.5], [2.9] * 6, oracle_kl=2.0, residual=(0.2, 0.6)),
        "reference": Made([3.1, 3.9], PROBE, oracle_kl=0.0, residual=(0.5, 0.7)),
        "reference-2": Made([3.2, 3.8], PROBE),
        "reference-1": Made([3.2, 3.8], PROBE),
        "ga-w3": Made([9.0, 8.0], PROBE, retain=4.0, falls=[8.5, 6.0, 5.0]),
    }


@pytest.fixture
def columns(models):
    return tables(models)


def row_of(items, **wanted):
    keep = np.ones(len(items["model"]), dtype=bool)
    for column, value in wanted.items():
        keep &= items[column] == value
    return int(np.flatnonzero(keep)[0])


def test_measures_follow_the_formulas(columns):
    cell = measure_cell(*columns)
    injected = cell.injected
    assert cell.forget_facts == ("f0", "f1")
    assert injected.forget_nlls == pytest.approx([1.0, 1.5])
    assert injected.forget_deltas == pytest.approx([-2.0, -2.5])
    assert injected.probe_deltas == pytest.approx([-0.1] * 6)
    assert injected.forget_nll == pytest.approx(1.25)
    assert injected.retain_nll == pytest.approx(1.0)
    assert injected.general_nll == pytest.approx(2.0)
    assert injected.oracle_kl == pytest.approx(2.0)
    assert (injected.residual_retain, injected.residual_general) == pytest.approx((0.2, 0.6))
    assert cell.floor == injected.residual == pytest.approx(0.8)  # the sum
    assert injected.median_gap == pytest.approx(-2.25 + 0.1)


def test_fact_nll_averages_templates_of_per_token_means(columns):
    """Templates weigh the same however many answer tokens they have."""
    items, curves = columns
    items = {name: values.copy() for name, values in items.items()}
    at = row_of(items, model="ga-w3", fact="f0", pool="evaluation", template=0)
    items["nll_sum"][at], items["tokens"][at] = 70.0, 7
    cell = measure_cell(items, curves)
    assert cell["ga-w3"].forget_nlls[0] == pytest.approx((10.0 + 9.125) / 2)


def test_rates_are_sums_over_sums(columns):
    items, curves = columns
    items = {name: values.copy() for name, values in items.items()}
    at = row_of(items, model="injected", fact="r1", pool="cloze")
    items["kl_reference"][at], items["tokens"][at] = 12.0, 6
    cell = measure_cell(items, curves)
    assert cell.injected.oracle_kl == pytest.approx((2 * 2 + 12 + 2 * 2 + 2 * 2) / (2 + 6 + 2 + 2))


def test_what_was_not_measured_is_none_and_asking_for_it_names_the_model(columns):
    cell = measure_cell(*columns)
    assert cell["ga-w3"].residual is None and cell["ga-w3"].oracle_kl is None
    with pytest.raises(ScoreError, match="ga-w3"):
        cell["ga-w3"].need("residual")
    with pytest.raises(ScoreError, match="injected"):
        cell.injected.need_curve()
    with pytest.raises(ScoreError, match="npo-w3"):
        cell["npo-w3"]


def test_references_are_told_by_their_role_and_come_in_draw_order(columns):
    cell = measure_cell(*columns, records=records_of(dict.fromkeys(columns[0]["model"])))
    assert cell.references == ("reference", "reference-1", "reference-2")
    assert measure_cell(*columns).references == ()
    records = {"injected": Model("injected", Role.REFERENCE, seed_no=0)}
    assert measure_cell(*columns, records=records).references == ("injected",)


def test_further_measures_come_from_their_table(columns):
    table = {
        "model": np.array(["injected", "injected", "base"], dtype=object),
        "measure": np.array(["lens", "quantised", "lens"], dtype=object),
        "value": np.array([0.5, np.nan, 2.0]),
    }
    cell = measure_cell(*columns, measures=table)
    assert cell["injected"].extra["lens"] == 0.5 and np.isnan(cell["injected"].extra["quantised"])
    assert cell["base"].extra == {"lens": 2.0} and cell["reference"].extra == {}
    twice = {name: np.concatenate([values, values[:1]]) for name, values in table.items()}
    with pytest.raises(ScoreError, match="injected"):
        measure_cell(*columns, measures=twice)


def test_curve_is_read_in_chunk_order(columns):
    items, curves = columns
    reverse = {name: values[::-1] for name, values in curves.items()}
    assert measure_cell(items, reverse)["ga-w3"].need_curve().first_fall == pytest.approx(2.5)


def test_row_order_and_string_kind_do_not_matter(columns):
    items, curves = columns
    order = np.random.default_rng(0).permutation(len(items["model"]))
    shuffled = {name: values[order] for name, values in items.items()}
    for column in ("model", "stage", "set", "fact", "pool"):
        shuffled[column] = shuffled[column].astype(str)
    one, other = measure_cell(items, curves), measure_cell(shuffled, curves)
    for name in one:
        position = [other.forget_facts.index(fact) for fact in one.forget_facts]
        assert one[name].forget_deltas == pytest.approx(other[name].forget_deltas[position])
        assert one[name].retain_nll == pytest.approx(other[name].retain_nll)


def test_only_models_scored_on_the_pool_are_measured(models):
    items, _ = tables(models)
    audit, _ = tables(
        {"base": Made([3.0, 4.0], PROBE), "panel:router": Made([3.0, 4.0], [2.9] * 6)}, "audit"
    )
    only_audit = audit["pool"] == "audit"
    both = {name: np.concatenate([items[name], audit[name][only_audit]]) for name in items}
    cell = measure_cell(both, pool="audit")
    assert list(cell) == ["base", "panel:router"]
    with pytest.raises(ScoreError, match="injected"):
        measure_cell(both, pool="audit", models=["injected"])


def without(items, **wanted):
    """The rows but the first that is like this."""
    return {name: np.delete(values, row_of(items, **wanted)) for name, values in items.items()}


def planted(column, value, **wanted):
    """What puts a value into the first row that is like this."""

    def change(items):
        changed = {name: values.copy() for name, values in items.items()}
        changed[column][row_of(items, **wanted)] = value
        return changed

    return change


def kept(column, unwanted, *more):
    return lambda items: {
        name: values[
            ~((items[column] == unwanted) & np.all([items[c] == v for c, v in more], axis=0))
        ]
        for name, values in items.items()
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (planted("nll_sum", np.nan, model="ga-w3", fact="p3"), ["ga-w3", "p3"]),
        (planted("nll_sum", -np.inf, model="ga-w3", fact="p3"), ["ga-w3", "p3"]),
        (planted("tokens", 0, model="base", fact="f0"), ["base", "f0"]),
        (planted("kl_reference", np.nan, model="injected", fact="r2"), ["injected", "r2"]),
        (planted("kl_injected", np.inf, model="reference", stage="reacquired", fact="g0"),
         ["reference", "g0", "kl_injected"]),
        (lambda items: without(items, model="ga-w3", fact="p3", template=1), ["ga-w3", "p3"]),
        (lambda items: without(items, model="base", fact="f1", template=0), ["base", "f1"]),
        (kept("model", "ga-w3", ("set", "probe")), ["ga-w3", "probe"]),
        (kept("model", "base"), ["base"]),
        (lambda items: {n: np.append(v, v[-1:]) for n, v in items.items()}, ["template"]),
        (lambda items: {n: v for n, v in items.items() if n != "tokens"}, ["tokens"]),
        (lambda items: items | {"tokens": items["tokens"][1:]}, ["length"]),
        (lambda items: {n: v[:0] for n, v in items.items()}, ["items"]),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_and_names_model_and_fact(columns, change, named):
    with pytest.raises(ScoreError) as error:
        measure_cell(change(columns[0]))
    assert all(word in str(error.value) for word in named)


def test_a_torn_or_non_finite_curve_is_refused(columns):
    _, curves = columns
    with pytest.raises(ScoreError, match="ga-w3"):
        read_curves({name: values[[0, 2]] for name, values in curves.items()})
    curves["forget_heldout_nll"][1] = np.nan
    with pytest.raises(ScoreError, match="ga-w3"):
        read_curves(curves)
