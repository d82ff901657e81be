"""The paper's figures on trained probes, screen, absolute bar and replication, beside ours."""

from dataclasses import dataclass

import numpy as np

from palimpsest.report.formats import Share, number, shown
from palimpsest.study import absolute, trained_probe
from palimpsest.study.absolute import Summary
from palimpsest.study.replication import median_delta
from palimpsest.study.results import SUPPRESSION, RunResults
from palimpsest.study.subpanels import sub_panels
from palimpsest.study.survivors import survivors


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure of the paper and ours."""

    key: str
    """A stable name, to which the documentation attaches why the two differ."""
    figure: str
    paper: str
    ours: str | None
    table: str
    """Where ours is computed: the name of a table."""


def trained_probe_headlines(results: RunResults) -> list[Headline]:
    """What the trained-probe criterion rewards, and what the screen makes of each method."""
    found = {level: trained_probe.held_out(results, level) for level in trained_probe.LEVELS}
    base, probes = found["base"], found["probes"]
    paper = "-2.82 [-3.16, -2.48]"
    rows = [
        Headline(
            "trained-probe-mean",
            "held-out forget facts of candidates rated adequate, mean nats from the never-learned "
            "level (base)",
            paper,
            None if base is None else _mean(base),
            "trained-probe",
        ),
        Headline(
            "trained-probe-mean-probes",
            "the same from the candidate's own never-learned probes",
            paper,
            None if probes is None else _mean(probes),
            "trained-probe",
        ),
        Headline(
            "trained-probe-median",
            "per-fact median and number of facts",
            "-2.91, n = 948",
            None if base is None else f"{number(base.median)}, n = {base.facts}",
            "trained-probe",
        ),
    ]
    rows.append(
        Headline(
            "rollback",
            "retain NLL of checkpoint rollback (base) and of the reference, medians",
            "6.6 and 2.4",
            _rollback(results),
            "models",
        )
    )
    by_method = {row.method: row for row in trained_probe.by_method(results)}
    shares = [
        by_method[name].excluded / by_method[name].candidates
        for name in ("kl_reversion", *SUPPRESSION)
        if name in by_method
    ]
    rows.append(
        Headline(
            "loss-based-excluded",
            "candidates of loss-based methods (KL reversion, GA, NPO) the screen excludes",
            "77-87%",
            f"{min(shares):.0%} to {max(shares):.0%}" if shares else None,
            "dichotomy",
        )
    )
    matched = trained_probe.matched_forgetting(trained_probe.diagnostic(results))
    ours = None
    if matched.restoration is not None and matched.suppression is not None:
        ours = f"{number(matched.restoration)} and {number(matched.suppression)}"
    rows.append(
        Headline(
            "diagnostic",
            "oracle-KL of restoration and of suppression at matched forgetting",
            "2-4 and 5-7",
            ours,
            "diagnostic",
        )
    )
    return rows


def screen_headlines(results: RunResults) -> list[Headline]:
    """What the screen excludes, and what surviving it means."""
    panels = {one.probes: one for one in sub_panels(results)}
    four, sixteen = panels.get(4), panels.get(16)
    alive = survivors(results)
    gap, share = None, None
    if alive.median_gap is not None:
        gap = number(alive.median_gap)
        if alive.gap is not None:
            gap += f" [{number(alive.gap.low)}, {number(alive.gap.high)}]"
    if alive.shares and alive.shares[0].total:
        one = alive.shares[0]
        share = f"{one.equivalent / one.total:.1%}"
        if one.share is not None:
            share += f" [{one.share.low:.1%}, {one.share.high:.1%}]"
    return [
        Headline(
            "n4-vacuous",
            "candidates excluded with n = 4 probes (vacuous by construction)",
            "0/820",
            None if four is None else shown(Share(four.excluded, four.candidates)),
            "sub-panels",
        ),
        Headline(
            "screen-excluded",
            "candidates excluded with n = 16 probes",
            "498/820",
            None if sixteen is None else shown(Share(sixteen.excluded, sixteen.candidates)),
            "sub-panels",
        ),
        Headline(
            "at-floor",
            "candidates at the smallest attainable p (n = 16), and the smallest p seen",
            "238, 2.06e-04",
            None if sixteen is None else f"{sixteen.at_floor}, {sixteen.smallest_p:.2e}",
            "sub-panels",
        ),
        Headline(
            "survivors",
            "candidates that survive the screen",
            "322/820",
            shown(Share(alive.survivors, alive.candidates)) if alive.candidates else None,
            "survivors",
        ),
        Headline(
            "survivor-gap",
            "median |gap| of forget and probe deltas among survivors, nats",
            "1.93 [1.68, 2.34]",
            gap,
            "survivors",
        ),
        Headline(
            "survivor-equivalent",
            "survivors equivalent to never-learned (TOST at the median delta_f)",
            "28.0% [22.6%, 34.0%]",
            share,
            "survivors",
        ),
    ]


def absolute_headlines(results: RunResults) -> list[Headline]:
    """The absolute bar against the models it must let pass."""
    audited = absolute.audit_models(results)
    reference = absolute.components([row.bar for row in audited if row.model == "reference"])
    injected = absolute.components([row.bar for row in audited if row.model == "injected"])
    everyone = absolute.components(absolute.candidate_bars(results))
    retain = [row.retain_nll for row in audited if row.model == "injected"]
    floor = absolute.floors(results)

    def counted(count: int, total: int) -> str | None:
        return shown(Share(count, total)) if total else None

    rows = [
        ("injected-retain", "injected model fails retain NLL ≤ 0.5", "41/45"),
        ("injected-residual", "injected model fails its own round trip ≤ 0.5", "31/45"),
        ("reference-screen", "reference passes the screen (evaluation pool)", "43/45"),
        ("reference-retain", "reference passes retain NLL ≤ 0.5", "11/45"),
        ("reference-residual", "reference passes residual ≤ 0.5", "7/45"),
        ("reference-all", "reference passes the whole absolute bar", "1/45"),
        ("absolute-candidates", "candidates under the absolute bar", "3/820"),
    ]
    ours = (
        counted(injected.total - injected.retain, injected.total),
        counted(injected.total - injected.residual, injected.total),
        counted(reference.screen, reference.total),
        counted(reference.retain, reference.total),
        counted(reference.residual, reference.total),
        counted(reference.all, reference.total),
        counted(everyone.all, everyone.total),
    )
    found = [Headline(*row, value, "absolute-bar") for row, value in zip(rows, ours)]
    spread = absolute.summary(retain) if retain else None
    found.append(
        Headline(
            "injected-retain-nll",
            "injected model's retain NLL, median and range",
            "1.20 (0.24 to 4.45)",
            _spread(spread),
            "absolute-bar",
        )
    )
    found.append(Headline("floor", "floor, median over cells", "0.92", _spread(floor), "budget"))
    points = absolute.budget_curve(results)
    shortest = [
        next(point for point in points if point.family == family) for family in results.families
    ]
    limit = results.rules.residual_limit
    closing = [f"{one.family} {number(one.residual.median)}" for one in shortest]
    count = sum(one.residual.median <= limit for one in shortest)
    found.append(
        Headline(
            "shortest-budget",
            "families that close their own loop below 0.5 at the shortest budget",
            "3/5 (gpt2 0.05, SmolLM2 0.12, Pythia 0.44)",
            f"{count}/{len(shortest)} ({', '.join(closing)})" if shortest else None,
            "budget",
        )
    )
    return found


def replication_headlines(results: RunResults) -> list[Headline]:
    """Replication noise of the reference."""
    deltas = [one.delta_f for one in results.tolerances.values()]
    middle = median_delta(results.tolerances)
    ours = None if not deltas else f"{number(min(deltas))} to {number(max(deltas))}"
    return [
        Headline("delta-range", "delta_f over families, nats", "0.82-2.92", ours, "replication"),
        Headline(
            "delta-median",
            "delta_f, median over families",
            "0.93",
            None if middle is None else number(middle),
            "replication",
        ),
    ]


def _rollback(results: RunResults) -> str | None:
    if not results.cells:
        return None
    medians = [
        float(np.median([cell.evaluation[name].need("retain_nll") for cell in results.cells]))
        for name in ("base", "reference")
    ]
    return f"{number(medians[0])} and {number(medians[1])}"


def _mean(found: trained_probe.HeldOut) -> str:
    if found.interval is None:
        return number(found.mean)
    return f"{number(found.mean)} [{number(found.interval.low)}, {number(found.interval.high)}]"


def _spread(one: Summary | None) -> str | None:
    return (
        None if one is None else f"{number(one.median)} ({number(one.low)} to {number(one.high)})"
    )
