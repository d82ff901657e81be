"""The paper's figures on the sealed panel and the recalibrated certificate, beside ours."""

from collections.abc import Callable

from palimpsest.report.audit_headlines import Headline
from palimpsest.report.formats import Share, number, shown
from palimpsest.study import panel, recalibration
from palimpsest.study.panel import Challenged
from palimpsest.study.recalibration import Certification
from palimpsest.study.results import RunResults


def panel_headlines(results: RunResults) -> list[Headline]:
    """The sealed panel."""
    rows = panel.challenge_panel(results)

    def accepted(challenge: str, axis: str, *, bound: bool = False) -> str | None:
        found = panel.acceptance(rows, results, challenge, axis)
        if not found.total:
            return None
        text = shown(Share(found.count, found.total))
        return f"{text} (upper bound {found.upper:.1%})" if bound else text

    def rejected(challenge: str) -> str | None:
        found = panel.acceptance(rows, results, challenge, "screen")
        return shown(Share(found.total - found.count, found.total)) if found.total else None

    attack = "panel:suppression"
    return [
        _line("panel-injected", "screen rejects the injected model", "45/45", rejected("injected")),
        _line(
            "panel-reference",
            "screen accepts the reference",
            "44/45",
            accepted("reference", "screen"),
        ),
        _line(
            "panel-interpolation",
            "screen acceptance along interpolations towards the reference",
            "rises monotonically",
            _along(results, rows),
        ),
        _line(
            "panel-router", "screen rejects the entity router", "35/45", rejected("panel:router")
        ),
        _line(
            "panel-suppression-screen",
            "screen alone accepts logit suppression",
            "28/45",
            accepted(attack, "screen"),
        ),
        _line(
            "panel-suppression-forward",
            "forward battery accepts logit suppression",
            "12/45 (upper bound 39.6%)",
            accepted(attack, "forward", bound=True),
        ),
        _line(
            "panel-suppression-relearning",
            "with round trip and relearn veto, logit suppression is accepted",
            "not run",
            accepted(attack, "relearning", bound=True),
        ),
        _line(
            "panel-embedding",
            "embedding corruption within retain damage of the injected model",
            "3/45",
            accepted("panel:embedding", "retain"),
        ),
    ]


def certificate_headlines(results: RunResults) -> list[Headline]:
    """The recalibrated certificate; the paper's has no relearn veto."""
    versions = recalibration.versions(results)
    bare, vetoed, smallest, _ = versions or (None,) * 4
    selected = recalibration.residual_selects_suppression(results)
    bounds = None
    if selected.upper is not None and selected.upper_clustered is not None:
        bounds = (
            f"{selected.count}/{selected.total} (upper bound {selected.upper:.1%}, by architecture "
            f"{selected.upper_clustered:.1%})"
        )

    def told(version: Certification | None, form: Callable[[Certification], str]) -> str | None:
        return None if version is None else form(version)

    def candidates(one: Certification) -> str:
        return shown(Share(len(one.certified), one.candidates))

    def cells(one: Certification) -> str:
        return shown(Share(len(one.certified_cells), one.cells))

    def abstaining(one: Certification) -> str:
        return shown(Share(one.cells - len(one.certified_cells), one.cells))

    def by_method(one: Certification) -> str:
        totals = {
            method: sum(
                len(cell.of_method(method)) for cell in results.cells if cell.id in one.verdicts
            )
            for method in results.methods
        }
        return ", ".join(
            f"{method} {one.count(method=method) / total:.0%}"
            for method, total in totals.items()
            if total
        )

    def noisiest(one: Certification) -> str:
        family = max(one.tolerances, key=lambda name: one.tolerances[name].delta_f)
        return f"{one.count(family=family)}/{len(one.certified)} ({family})"

    table = "certificate"
    return [
        Headline(
            "residual-selection",
            "selection by smallest residual picks a suppression method",
            "0/45 (upper bound 6.4%, by architecture 28.3%)",
            bounds,
            "suppression",
        ),
        Headline("certified", "certified candidates", "38/820", told(bare, candidates), table),
        Headline("certified-cells", "certified cells", "15/45", told(bare, cells), table),
        Headline("abstaining", "abstaining cells", "30/45", told(bare, abstaining), table),
        Headline(
            "certified-by-method",
            "certified share by method",
            "gate_mask 16%, task_vector, npo and ga 4%, kl_reversion 0%",
            told(bare, by_method),
            "certified",
        ),
        Headline(
            "noisiest-family",
            "certified candidates from the family with the largest delta_f",
            "29/38 (qwen)",
            told(bare, noisiest),
            "certified",
        ),
        Headline(
            "global-minimum",
            "certified at the smallest delta_f of all families",
            "4/820 in 4 cells",
            told(smallest, lambda one: f"{candidates(one)} in {len(one.certified_cells)} cells"),
            table,
        ),
        Headline(
            "with-veto",
            "certified with the relearn veto",
            "not run",
            told(vetoed, lambda one: f"{candidates(one)} in {len(one.certified_cells)} cells"),
            table,
        ),
    ]


def selection_headlines(results: RunResults) -> list[Headline]:
    """Selection quality on the cells the veto-less certificate certifies."""
    versions = recalibration.versions(results)
    quality = recalibration.selection_quality(results, versions[0]) if versions else ()
    paper = {
        "recalibrated certificate pick": "0.795, 0.729, 0.767, 3.555",
        "absolute-bar pick": "3.298, 0.990, 0.166, 2.103",
        "trained-probe best": "5.167, 0.838, 0.312, 1.551",
    }
    found = {one.selector: one for one in quality if one.picks}
    rows = []
    for selector, figures in paper.items():
        ours = None
        if selector in found:
            axes = ("forget_distance", "retain_damage", "residual_damage", "oracle_kl")
            means = [found[selector].mean(axis) for axis in axes]
            ours = ", ".join(number(value) for value in means if value is not None)
        rows.append(
            Headline(
                f"selection-{selector.split()[0]}",
                f"{selector}: forget distance, retain damage, round-trip damage, trained-probe KL",
                figures,
                ours,
                "selection",
            )
        )
    return rows


def _along(results: RunResults, rows: tuple[Challenged, ...]) -> str | None:
    path = [name for name in panel.challenges(rows) if name.startswith("panel:interpolate-")]
    path.sort(key=lambda name: float(name.rpartition("-")[2]))
    if not path:
        return None
    counts = [panel.acceptance(rows, results, name, "screen") for name in path]
    return ", ".join(
        f"{name.rpartition('-')[2]}: {one.count}/{one.total}" for name, one in zip(path, counts)
    )


def _line(key: str, figure: str, paper: str, ours: str | None) -> Headline:
    return Headline(key, figure, paper, ours, "panel")
