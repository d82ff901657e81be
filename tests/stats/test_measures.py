"""A cell's measures follow the stated formulas, and a bad score names its model and fact."""

import numpy as np
import pytest
from tests.made_runs import Made, tables

from palimpsest.errors import ScoreError
from palimpsest.stats.measures import measure_cell, read_curves
from palimpsest.stats.models import Model, Role

MODELS = {
    "base": Made(0.0, 0.0, exact=True, sealed=True),
    "injected": Made(-2.0, -0.1, retain=1.0, oracle_kl=2.0, residual=0.4),
    "reference": Made(0.1, 0.0, oracle_kl=0.0),
    "reference-2": Made(0.2, 0.0),
    "reference-1": Made(0.2, 0.0),
    "router": Made(0.0, 0.0, sealed=True),
    "ga-w3": Made(5.5, 0.0, retain=4.0, early=6.0),
}


@pytest.fixture
def columns():
    """Items and curves; the general part of the residual is one and a half of the retain part."""
    items, curves = (
        {name: np.array(values, dtype=object if isinstance(values, list) else None)
         for name, values in table.items()}
        for table in tables("measures", MODELS)
    )  # fmt: skip
    items["kl_injected"][items["set"] == "general"] *= 1.5
    return items, curves


def row_of(items, **wanted):
    keep = np.ones(len(items["model"]), dtype=bool)
    for column, value in wanted.items():
        keep &= items[column] == value
    return int(np.flatnonzero(keep)[0])


def test_measures_follow_the_formulas(columns):
    cell = measure_cell(*columns)
    injected, forget, probe = (
        cell.injected,
        np.linspace(-0.05, 0.05, 4),
        np.linspace(-0.09, 0.09, 16),
    )
    assert cell.forget_facts == ("f0", "f1", "f2", "f3")
    assert injected.forget_nlls == pytest.approx(np.linspace(2.9, 3.1, 4) - 2 + forget)
    assert injected.forget_deltas == pytest.approx(-2 + forget)
    assert injected.probe_deltas == pytest.approx(-0.1 + probe)
    assert injected.forget_nll == pytest.approx(1.0)
    assert injected.retain_nll == pytest.approx(1.0)
    assert injected.general_nll == pytest.approx(2.0)
    assert injected.oracle_kl == pytest.approx(2.0)
    assert (injected.residual_retain, injected.residual_general) == pytest.approx((0.4, 0.6))
    assert cell.floor == injected.residual == pytest.approx(1.0)  # the sum
    assert injected.median_gap == pytest.approx(-1.9)


def test_fact_nll_averages_templates_of_per_token_means(columns):
    """Templates weigh the same however many answer tokens they have."""
    items, curves = columns
    at = row_of(items, model="base", fact="f0", pool="evaluation", template=0)
    items["nll_sum"][at], items["tokens"][at] = 70.0, 7
    other = 2.9 + 0.1  # of the second template
    cell = measure_cell(items, curves)
    assert cell["base"].forget_nlls[0] == pytest.approx((10.0 + other) / 2)


def test_rates_are_sums_over_sums(columns):
    items, curves = columns
    at = row_of(items, model="injected", fact="r1", pool="cloze")
    items["kl_reference"][at], items["tokens"][at] = 12.0, 6
    cell = measure_cell(items, curves)
    assert cell.injected.oracle_kl == pytest.approx((7 * 2 * 2 + 12) / (7 * 2 + 6))


def test_what_was_not_measured_is_none_and_asking_for_it_names_the_model(columns):
    items, _ = columns
    forward = items["stage"] == "forward"
    items["kl_reference"][items["model"] == "ga-w3"] = np.nan
    cell = measure_cell({name: values[forward] for name, values in items.items()})
    assert cell["ga-w3"].residual is None and cell["ga-w3"].oracle_kl is None
    with pytest.raises(ScoreError, match="ga-w3"):
        cell["ga-w3"].need("residual")
    with pytest.raises(ScoreError, match="injected"):
        cell.injected.need_curve()
    with pytest.raises(ScoreError, match="npo-w3"):
        cell["npo-w3"]


def test_references_are_told_by_their_role_and_come_in_draw_order(columns):
    names = ("reference", "reference-1", "reference-2")
    records = {n: Model(n, Role.REFERENCE, seed_no=seed) for seed, n in enumerate(names)}
    assert measure_cell(*columns, records=records).references == names
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
    assert measure_cell(items, reverse)["ga-w3"].need_curve().first_fall == pytest.approx(8.5 - 6.0)


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


def test_only_models_scored_on_the_pool_are_measured(columns):
    items, _ = columns
    assert list(measure_cell(items, pool="audit")) == ["base", "router"]
    with pytest.raises(ScoreError, match="injected"):
        measure_cell(items, pool="audit", models=["injected"])


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
    with pytest.raises(ScoreError, match="base"):
        read_curves({name: values[[0, 2]] for name, values in curves.items()})
    curves["forget_heldout_nll"][1] = np.nan
    with pytest.raises(ScoreError, match="base"):
        read_curves(curves)
