"""No forged evidence passes: models, roles, the sealed pool, terms, rules, lists and tables.

These forgers repair the statement and whatever else they know of.
"""

from typing import Any

import numpy as np
import pytest
from forgery import (
    Summary,
    failed,
    made_up,
    repaired,
    rosters,
    value,
    with_cell,
    with_models,
    with_rosters,
    with_rows,
    with_rules,
    with_terms,
    without_model,
    written,
)
from tests.made_runs import AUDIT, NONCE, STUDY, source, write_audit, write_study

from palimpsest.certificate import certify
from palimpsest.certificate.bundle import pack, unpack
from palimpsest.certificate.checks import examine
from palimpsest.run.files import digest

CELL = f"cells/{STUDY}"


@pytest.mark.parametrize(
    "model",
    ["ga-w12", "reference-6", "control-25-reference-1", "control-10-reference-4",
     "known-suppression", "retraining-1", "forget_only", "base"],
)  # fmt: skip
def test_a_model_left_out_is_noticed_at_every_depth(model, members):
    failed(repaired(with_models(members, **{model: None})), "models")
    failed(repaired(without_model(members, model)), "models")


def test_a_reference_left_out_of_the_lists_too_is_noticed(audit_members):
    for model in ("reference-4", "bad", "control-25-reference-1"):
        less = without_model(audit_members, model, AUDIT)
        failed(repaired(less), "models")
    (listed,) = rosters(audit_members)
    for model in ("reference-4", "bad"):
        less = without_model(audit_members, model, AUDIT)
        kept = [entry for entry in listed if entry["name"] != model]
        # The cell was made under the list that names it.
        failed(repaired(with_rosters(less, kept)), "cells")
        if model.startswith("reference"):  # its controls are still there
            failed(repaired(made_up(with_rosters(less, kept), AUDIT)), "models")
        words = examine(repaired(made_up(with_rosters(less, listed, kept), AUDIT))).lines()
        assert any("ATTENTION" in line for line in words)


def test_a_model_slipped_in_is_noticed(members, audit_members):
    more: dict[str, Any] = {"role": "reference", "seed_no": 7, "digest": "sha256:more"}
    failed(repaired(with_models(members, **{"reference-7": more})), "models")
    knobs = next(m for m in value(members, f"{CELL}/cell.json")["models"] if m["name"] == "ga-w3")
    unlisted = knobs | {"name": "ga-w4", "knobs": knobs["knobs"] | {"weight": 4.0}}
    failed(repaired(with_models(members, **{"ga-w4": unlisted, "ga-w12": None})), "models")
    failed(repaired(with_models(members, **{"ga-w12": unlisted | {"name": "ga-w12"}})), "models")
    general = {"role": "general_only", "digest": "sha256:more"}
    failed(repaired(with_models(audit_members, AUDIT, general_only=general)), "models")
    failed(repaired(with_cell(members, lambda s: s | {"models": [*s["models"], s["models"][5]]})))


def test_swapped_roles_are_noticed(members, audit_members):
    for role in ("candidate", "injected", "retraining", "control", "known_label", "", "king"):
        failed(repaired(with_models(members, **{"reference-2": {"role": role}})), "models")
    swap = {"bad": {"role": "reference", "seed_no": 2}, "reference-2": {"role": "candidate"}}
    failed(repaired(with_models(audit_members, AUDIT, **swap)), "models")
    hidden = {"known-suppression": {"role": "control", "share": 0.5}}
    failed(repaired(with_models(members, **hidden)), "models")


def test_a_model_with_other_traits_than_planned_is_noticed(members, audit_members):
    control = "control-25-reference-1"
    for name, change in (
        *((control, {"share": share}) for share in (0.9, None, "0.25", 0.1)),
        (control, {"of": "reference-5"}),
        ("reference-3", {"seed_no": 9}),
        ("reference", {"same_draw": None}),
        ("reference-1", {"same_draw": True}),
        ("reference-1", {"excluded": True}),
        ("known-suppression", {"truth": "restored"}),
        ("base", {"source": "sha256:other"}),
        ("injected", {"source": "sha256:other"}),
    ):
        failed(repaired(with_models(members, **{name: change})), "models")
    for name in ("reference-1", "good", "injected"):
        other = with_models(audit_members, AUDIT, **{name: {"source": source("other")}})
        failed(repaired(other), "models")
    other = with_models(audit_members, AUDIT, good={"weights": "sha256:other"})
    failed(repaired(other), "models")


def test_a_model_that_is_scored_but_not_listed_is_noticed(members):
    def renamed(items: dict[str, Any]) -> dict[str, Any]:
        return items | {"model": np.where(items["model"] == "ga-w12", "ga-w13", items["model"])}

    failed(repaired(with_rows(members, renamed)), "scores")


def test_facts_left_out_are_noticed(members, audit_members):
    def fewer(items: dict[str, Any]) -> dict[str, Any]:
        kept = ~((items["set"] == "probe") & (items["fact"] == "p7"))
        return {name: values[kept] for name, values in items.items()}

    def unlisted(summary: Summary) -> Summary:
        rows = [row for row in summary["facts"]["probe"] if row[0] != "p7"]
        return summary | {"facts": summary["facts"] | {"probe": rows}}

    for held, cell in ((members, STUDY), (audit_members, AUDIT)):
        less = with_rows(held, fewer, cell)
        failed(repaired(less), "scores")
        failed(repaired(with_cell(less, unlisted, cell=cell)), "scores")


def test_scoring_the_sealed_pool_twice_or_never_is_noticed(members):
    def twice(items: dict[str, Any]) -> dict[str, Any]:
        rows = np.flatnonzero(items["pool"] == "audit")
        again = np.concatenate([np.arange(len(items["pool"])), rows])
        return {name: values[again] for name, values in items.items()}

    def more_phrasings(items: dict[str, Any]) -> dict[str, Any]:
        longer = twice(items)
        template = longer["template"].copy()
        template[len(items["pool"]) :] += 6
        return longer | {"template": template}

    def never(items: dict[str, Any]) -> dict[str, Any]:
        return {name: values[items["pool"] != "audit"] for name, values in items.items()}

    def peeked(items: dict[str, Any]) -> dict[str, Any]:
        longer = twice(items)
        longer["model"][len(items["pool"]) :] = "ga-w3"
        return longer

    for change in (twice, more_phrasings, never, peeked):
        failed(repaired(with_rows(members, change)), "seal")


def test_another_pool_or_nonce_than_the_sealed_one_is_noticed(members):
    reveal = value(members, "reveal.json")
    relation = sorted(reveal["pool"]["phrasings"])[0]
    easier = {relation: ["Something easier about {subject} and the"]}
    swapped = reveal["pool"]["phrasings"] | easier
    for other in (
        reveal | {"nonce": NONCE[::-1]},
        reveal | {"pool": reveal["pool"] | {"phrasings": swapped}},
        reveal | {"pool": reveal["pool"] | {"by": "fact"}},
        reveal | {"more": 1},
        {},
        [],
        None,
    ):
        failed(repaired(members | {"reveal.json": written(other)}), "seal")
    other = with_terms(members, seal={"commitment": "sha256:" + "5" * 64, "pool": "built-in"})
    failed(repaired(made_up(other)), "seal")


def test_a_cell_of_another_run_or_of_another_name_is_noticed(members, audit_members, tmp_path):
    other = unpack(certify(write_study(tmp_path / "run", name="other")).read_bytes())
    cell = {name: data for name, data in other.items() if name.startswith("cells/")}
    failed(repaired(members | cell), "cells")
    strict = audit_members | with_rules(audit_members, alpha=0.01)
    failed(repaired(strict), "cells")
    for key, wrong in (("cell", "other--seed1"), ("seed", 1), ("model", "x"), ("roster", "sha256")):
        failed(repaired(with_cell(members, lambda s, k=key, w=wrong: s | {k: w})), "cells")


def test_terms_and_lists_of_another_run_are_noticed(members):
    stricter = with_rules(members, alpha=0.01)
    failed(repaired(members | {"terms.json": stricter["terms.json"]}), "rosters")
    failed(repaired(with_terms(members, kind="unlearn")), "terms")
    failed(repaired(members | {"rosters.json": b""}), "rosters")
    failed(repaired(with_rosters(members)), "rosters")
    (first,) = rosters(members)
    # Candidates that a later list has dropped, or that were never made.
    failed(repaired(with_rosters(members, first, first[:1])), "models")
    failed(repaired(with_rosters(members, first, [*first, first[0] | {"name": "npo"}])), "models")


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.0005},
        {"alpha": 0.5},
        {"detection_limit": 0.5},
        {"detection_power": 0.5},
        {"unmeasured_axes": ["residual"]},
        {"alpha": True},
        {"alpha": None},
        {"more": 1},
    ],
)
def test_rules_that_no_run_may_have_fail_even_when_everything_is_made_for_them(
    change, members, audit_members
):
    for held, cell in ((members, STUDY), (audit_members, AUDIT)):
        failed(repaired(made_up(with_rules(held, **change), cell)), "rules")


def test_an_axis_that_was_measured_cannot_be_left_out(members, audit_members):
    failed(repaired(made_up(with_rules(members, unmeasured_axes=["reversed"]))), "rules")
    name = f"cells/{AUDIT}/measures.parquet"
    measured = audit_members | {name: members[f"{CELL}/measures.parquet"]}
    added = {"measures.parquet": digest(measured[name])}
    forged = with_cell(measured, lambda s: s | {"artifacts": s["artifacts"] | added}, cell=AUDIT)
    failed(repaired(forged), "scores")


def test_a_draw_that_does_not_follow_is_noticed(audit_members):
    config = value(audit_members, "terms.json")["terms"]["config"]
    for change in ({"optimizer": "adamw"}, {"rate": 1.0}, {"beacon": "chosen"}):
        drawn = config["drawn"] | change
        failed(repaired(with_terms(audit_members, config=config | {"drawn": drawn})), "terms")
    other = with_cell(audit_members, lambda s: s | {"beacon": None}, cell=AUDIT)
    failed(repaired(other), "models")


def test_a_cell_left_out_is_noticed_at_every_depth(tmp_path):
    whole = unpack(certify(write_study(tmp_path / "run", seeds=(0, 1))).read_bytes())
    assert examine(pack(whole)).ok
    less = {name: data for name, data in whole.items() if "seed1" not in name}
    failed(pack(less), "digests")
    failed(repaired(less), "cells")
    failed(repaired(with_terms(less, cells=[STUDY])), "terms")
    config = value(less, "terms.json")["terms"]["config"] | {"seeds": [0]}
    failed(repaired(with_terms(less, cells=[STUDY], config=config)), "cells")
    copied = whole | {
        name.replace("seed0", "seed1"): data for name, data in whole.items() if "seed0" in name
    }
    failed(repaired(copied), "cells")


def test_a_headroom_left_out_added_or_changed_is_noticed(tmp_path, audit_members):
    name = f"cells/{AUDIT}/headroom.parquet"
    held = unpack(certify(write_audit(tmp_path / "run", evidence=2.9)).read_bytes())
    other = unpack(certify(write_audit(tmp_path / "other", evidence=2.8)).read_bytes())
    left_out = {file: data for file, data in held.items() if file != name}
    for changed in (left_out, held | {name: other[name]}, audit_members | {name: held[name]}):
        failed(repaired(changed), "cells")


def worse(items: dict[str, Any]) -> dict[str, Any]:
    """Return the scores with a candidate's edited."""
    chosen = (items["model"] == "ga-w3") & (items["pool"] == "evaluation")
    return items | {"nll_sum": np.where(chosen, items["nll_sum"] + 3.0, items["nll_sum"])}


def relearned(curves: dict[str, Any]) -> dict[str, Any]:
    chosen = curves["model"] == "ga-w3"
    later = np.where(chosen, curves["forget_heldout_nll"] - 1.0, curves["forget_heldout_nll"])
    return curves | {"forget_heldout_nll": later}


def test_edited_scores_are_noticed_at_every_depth(members):
    edited = with_rows(members, worse)
    items = f"{CELL}/items.parquet"
    stated = value(members, "statement.json")["predicate"]["cells"]
    failed(pack(members | {items: edited[items]}), "digests")
    failed(repaired(members | {items: edited[items]}), "cells")
    for forged in (edited, with_rows(members, relearned, tables=("curves",))):
        # With new digests everywhere, but the verdicts as they were.
        other = value(unpack(repaired(forged)), "statement.json")
        other["predicate"]["cells"] = stated
        failed(pack(forged | {"statement.json": written(other)}), "verdicts")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308, -1e308])
def test_scores_that_are_not_finite_give_no_verdict(bad, members):
    def broken(items: dict[str, Any]) -> dict[str, Any]:
        return items | {"nll_sum": np.where(items["pool"] == "evaluation", bad, items["nll_sum"])}

    failed(repaired(with_rows(members, broken)), "verdicts")


def test_what_verification_cannot_notice_is_a_bundle_made_up_whole(members):
    """The limit that the certificate states: everything, from the terms on, made again."""
    for forged in (with_rows(members, worse), made_up(with_rules(members, detection_power=0.9))):
        verification = examine(repaired(forged))
        assert verification.ok, verification.failure
        assert "could invent" in verification.what_it_means
    # Terms published beforehand, or a signature, show it.
    assert verification.terms != examine(pack(members)).terms
