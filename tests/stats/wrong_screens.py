"""Two designs of the screen that look alike and are wrong, for teaching and regression."""

from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.multiplicity import exact_level
from palimpsest.stats.ranktest import rank_test
from palimpsest.stats.rules import Rules


def probes_by_injected(cell: CellMeasures, name: str, rules: Rules) -> bool:
    """Whether the candidate's forget NLLs lie below the *injected* model's probe NLLs.

    Damage anywhere raises the first and not the second, and passes for forgetting.
    """
    test = rank_test(cell[name].forget_nlls, cell.injected.probe_nlls)
    return test.exact_p <= exact_level(rules.alpha)


def injected_anchored(cell: CellMeasures, name: str, rules: Rules) -> bool:
    """Whether deltas from the injected model are lower on forget facts than on probes.

    Its gap between learned forget and never-seen probe facts is the very label under test: the
    injected model itself passes.
    """
    model, injected = cell[name], cell.injected
    test = rank_test(
        model.forget_nlls - injected.forget_nlls, model.probe_nlls - injected.probe_nlls
    )
    return test.exact_p <= exact_level(rules.alpha)
