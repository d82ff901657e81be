"""No forged evidence passes: models, roles, the sealed pool, terms, rules, lists and record.

These forgers repair the statement and whatever else they know of.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import (
    Members,
    Summary,
    failed,
    lists_of,
    made_up,
    repaired,
    signed,
    value,
    with_cell,
    with_lists,
    with_models,
    with_record,
    with_rows,
    with_rules,
    with_terms,
    with_verdicts,
    without_model,
    written,
)
from small_run import AUDIT, NONCE, SHARES, STUDY, source, write_audit, write_small

from palimpsest.certificate import certify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.verification import examine
from palimpsest.run.files import digest

CELL = f"cells/{STUDY}"


# -- models left out, slipped in, or in other roles ------------------------------------------------


@pytest.mark.parametrize(
    "model",
    ["ga-w12", "reference-6", "mixture-0.5-reference-0", "mixture-0.05-reference-4",
     "known-suppression", "retraining-1", "forget_only", "base"],
)  # fmt: skip
def test_a_model_left_out_is_noticed_at_every_depth(model: str, members: Members) -> None:
    failed(repaired(with_models(members, **{model: None})))
    if model != "base":  # without which there is no verdict to forge
        failed(repaired(without_model(members, model)), "models")


def test_a_model_left_out_of_an_audit_is_noticed(audit_members: Members) -> None:
    for model in ("reference-4", "bad", "mixture-0.25-reference-1"):
        failed(repaired(without_model(audit_members, model, AUDIT)), "models")


def test_a_model_slipped_in_is_noticed(members: Members, audit_members: Members) -> None:
    more: dict[str, Any] = {"role": "reference", "seed_no": 7, "digest": "sha256:more"}
    failed(repaired(with_models(members, **{"reference-7": more})), "models")
    candidate = {"role": "candidate", "method": "ga", "digest": "sha256:more"}
    candidate |= {"knobs": {"weight": 3.0}}
    failed(repaired(with_models(members, **{"ga-w3b": candidate})), "models")
    unlisted = candidate | {"knobs": {"weight": 4.0}}
    failed(repaired(with_models(members, **{"ga-w4": unlisted, "ga-w12": None})), "models")
    # In the place of another one: listed, but not scored.
    renamed = candidate | {"knobs": {"weight": 12.0}}
    failed(repaired(with_models(members, **{"ga-w12b": renamed, "ga-w12": None})), "scores")
    general = {"role": "general_only", "digest": "sha256:more"}
    failed(repaired(with_models(audit_members, AUDIT, general_only=general)), "models")


def test_swapped_roles_are_noticed(members: Members, audit_members: Members) -> None:
    for role in ("candidate", "injected", "retraining", "control", "known_label", "", "king"):
        failed(repaired(with_models(members, **{"reference-2": {"role": role}})), "models")
    swap = {"bad": {"role": "reference", "seed_no": 2}, "reference-2": {"role": "candidate"}}
    failed(repaired(with_models(audit_members, AUDIT, **swap)), "models")
    hidden = {"known-suppression": {"role": "control", "share": 0.5}}
    failed(repaired(with_models(members, **hidden)), "models")
    failed(repaired(with_models(members, injected=None, base=None)))


def test_a_model_with_other_traits_than_planned_is_noticed(
    members: Members, audit_members: Members
) -> None:
    first = "mixture-0.5-reference-0"
    for name, change in (
        *((first, {"share": share}) for share in (0.9, None, "0.5", SHARES[1])),
        (first, {"of": "reference-5"}),
        ("reference-3", {"seed_no": 9}),
        ("reference-0", {"same_draw": None}),
        ("reference-1", {"same_draw": True}),
        ("reference-1", {"excluded": True}),
        ("known-suppression", {"truth": "restored"}),
        ("base", {"source": "sha256:other"}),
        ("injected", {"source": "sha256:other"}),
        ("ga-w3", {"roster": "sha256:other"}),
        ("ga-w3", {"digest": None}),
    ):
        failed(repaired(with_models(members, **{name: change})), "models")
    for name in ("reference-1", "good", "injected"):
        other = with_models(audit_members, AUDIT, **{name: {"source": source("other")}})
        failed(repaired(other), "models")
    exchanged = {first: {"share": 0.05}, "mixture-0.05-reference-0": {"share": 0.5}}
    failed(repaired(with_models(members, **exchanged)), "verdicts")
    failure = {"failure": {"kind": "diverged", "reason": "at step 3"}}
    failed(repaired(with_models(members, **{"mixture-0.25-reference-1": failure})), "verdicts")
    failed(repaired(with_cell(members, lambda s: s | {"models": [*s["models"], s["models"][5]]})))


@pytest.mark.parametrize("twin", ["injected", "reference-1", "ga-w3", "base"])
def test_a_reference_with_the_weights_of_another_model_is_noticed(
    twin: str, members: Members
) -> None:
    same = {"digest": digest(twin.encode())}
    forged = with_models(members, **{"reference-2": same})
    assert "has the weights of" in failed(repaired(forged), "models")


def test_facts_left_out_are_noticed(members: Members, audit_members: Members) -> None:
    def fewer(items: dict[str, Any]) -> dict[str, Any]:
        kept = ~((items["set"] == "probe") & (items["fact"] == "p7"))
        return {name: values[kept] for name, values in items.items()}

    def unlisted(summary: Summary) -> Summary:
        rows = [row for row in summary["facts"]["probe"] if row[0] != "p7"]
        return summary | {"facts": summary["facts"] | {"probe": rows}}

    for held, cell in ((members, STUDY), (audit_members, AUDIT)):
        less = with_verdicts(with_rows(held, fewer, cell))
        failed(repaired(less), "scores")
        failed(repaired(with_verdicts(with_cell(less, unlisted, cell=cell))), "scores")


# -- the sealed pool -------------------------------------------------------------------------------


def with_opening(members: Members, **changed: Any) -> Members:
    def change(summary: Summary) -> Summary:
        return summary | {"opening": signed(summary["opening"] | changed)}

    return with_cell(members, change)


def test_a_second_opening_of_the_sealed_pool_is_noticed(members: Members) -> None:
    opening = value(members, f"{CELL}/cell.json")["opening"]
    again = signed(opening | {"step": "known-label-2"})
    failed(repaired(with_record(members, lambda e: [*e, ("opened", again)])), "record")
    failed(repaired(with_record(members, lambda e: [e[0], *e])), "record")

    def twice(summary: Summary) -> Summary:
        extra = summary["steps"][-1] | {"step": "known-label-2"}
        return summary | {"steps": [*summary["steps"], extra]}

    failed(repaired(with_cell(members, twice)), "seal")


def test_scoring_the_sealed_pool_twice_is_noticed(members: Members) -> None:
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

    for change in (twice, more_phrasings, never):
        failed(repaired(with_rows(members, change)), "scores")


def test_scoring_a_candidate_on_the_sealed_pool_is_noticed(members: Members) -> None:
    def peeked(items: dict[str, Any]) -> dict[str, Any]:
        rows = np.flatnonzero((items["pool"] == "audit") & (items["model"] == "reference-0"))
        again = np.concatenate([np.arange(len(items["pool"])), rows])
        longer = {name: values[again] for name, values in items.items()}
        longer["model"][len(items["pool"]) :] = "ga-w3"
        return longer

    failed(repaired(with_rows(members, peeked)), "scores")


def test_an_opening_for_other_models_steps_cells_or_pools_is_noticed(members: Members) -> None:
    models = value(members, f"{CELL}/cell.json")["opening"]["models"]
    for change in (
        {"models": models | {"injected": "sha256:other"}},
        {"models": models | {"unknown": "sha256:unknown"}},
        {"models": {}},
        {"models": None},
        {"step": "measure"},
        {"cell": "other--seed1"},
        {"terms": "sha256:" + "0" * 64},
        {"commitment": "sha256:" + "5" * 64},
    ):
        failed(repaired(with_opening(members, **change)), "seal")
    failed(repaired(with_cell(members, lambda s: s | {"opening": None})), "seal")
    fewer = {name: models[name] for name in models if name != "injected"}
    failed(repaired(with_opening(members, models=fewer)), "scores")


def test_another_pool_or_nonce_than_the_sealed_one_is_noticed(members: Members) -> None:
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


# -- terms, rules, lists and record ----------------------------------------------------------------


def test_a_reordered_record_is_noticed(members: Members) -> None:
    for reorder in (
        lambda events: events[::-1],
        lambda events: [*events[1:], events[0]],
        lambda events: [events[0], *events[2:], events[1]],
        lambda events: events[:-1],
        lambda events: [*events, events[-1]],
    ):
        failed(repaired(with_record(members, reorder)), "record")


def test_steps_reordered_left_out_or_doubled_are_noticed(members: Members) -> None:
    steps = value(members, f"{CELL}/cell.json")["steps"]
    assert steps[1]["needs"] == {"measure": steps[0]["digest"]}
    for changed in (steps[::-1], steps[:1] * 2, [steps[1]]):
        forged = with_cell(members, lambda s, changed=changed: s | {"steps": changed})
        failed(repaired(forged), "record")
    # The manifests as they were, under other contents.
    for key, other in (("files", {"values.json": "x"}), ("key", "x"), ("origin", "x")):
        changed = [steps[0] | {key: other}, steps[1]]
        forged = with_cell(members, lambda s, c=changed: s | {"steps": c}, manifests=False)
        failed(repaired(forged), "record")
    failed(repaired(with_cell(members, lambda s: s | {"steps": []})), "seal")
    for odd in (None, [], [{}], [{"step": 1, "files": {}, "needs": {}, "digest": ""}]):
        failed(repaired(with_cell(members, lambda s, odd=odd: s | {"steps": [*steps, odd]})))


def test_results_made_under_other_terms_or_lists_are_noticed(members: Members) -> None:
    other = "sha256:" + "0" * 64
    failed(repaired(with_cell(members, terms=other)), "record")
    failed(repaired(with_cell(members, lambda s: s | {"terms": other}, manifests=False)), "record")
    failed(repaired(with_terms(members, seal={"commitment": other, "pool": "built-in"})), "record")
    (first,) = [entry["data"]["models"] for entry in lists_of(members)]
    failed(repaired(with_lists(members, [*first, first[0] | {"weight": [4.0]}])), "record")
    failed(repaired(members | {"rosters.json": b""}), "terms")
    # Candidates that a later list has dropped, or that were never made.
    failed(repaired(with_lists(members, first, [])), "models")
    failed(repaired(with_lists(members, first, [first[0] | {"weight": [3.0]}])), "models")
    longer = with_lists(members, first, [*first, {"name": "npo", "plugin": ""}])
    failed(repaired(longer), "models")
    huge = [{"name": "ga", "plugin": ""} | {f"knob{n}": [*range(50)] for n in range(9)}]
    failed(repaired(with_lists(members, first, huge)), "terms")


def test_rules_changed_after_the_results_are_noticed(members: Members) -> None:
    for change in ({"alpha": 0.01}, {"detection_limit": 0.2}, {"detection_power": 0.9}):
        stricter = with_rules(members, **change)
        terms = value(stricter, "terms.json")["terms"]
        failed(repaired(members | {"terms.json": stricter["terms.json"]}), "terms")
        only_rules = with_terms(members, rules=terms["rules"])
        failed(repaired(only_rules), "rules")
        # With the terms made again, the cells were still made under the old ones.
        failed(repaired(with_verdicts(stricter)), "record")


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.0005},
        {"detection_limit": 0.5},
        {"detection_power": 0.5},
        {"minimum_references": 2},
        {"unmeasured_axes": ["residual"]},
        {"alpha": True},
        {"alpha": None},
        {"more": 1},
    ],
)
def test_rules_that_no_run_may_have_fail_even_when_everything_is_made_for_them(
    change: dict[str, Any], members: Members, audit_members: Members
) -> None:
    for held in (members, audit_members):
        failed(repaired(with_rules(held, **change)), "rules")


def test_an_axis_that_was_measured_cannot_be_left_out(members: Members, tmp_path: Path) -> None:
    failed(repaired(made_up(with_rules(members, unmeasured_axes=["reversed"]))), "rules")
    audit = unpack(certify(write_audit(tmp_path / "run")).read_bytes())
    name = f"cells/{AUDIT}/measures.parquet"
    measured = audit | {name: members[f"{CELL}/measures.parquet"]}
    added = {"measures.parquet": digest(measured[name])}
    forged = with_cell(measured, lambda s: s | {"artifacts": s["artifacts"] | added}, cell=AUDIT)
    failed(repaired(with_verdicts(forged)), "scores")


def test_a_draw_that_does_not_follow_is_noticed(audit_members: Members) -> None:
    config = value(audit_members, "terms.json")["terms"]["config"]
    for change in ({"optimizer": "adamw"}, {"rate": 1.0}, {"beacon": "chosen"}):
        drawn = config["drawn"] | change
        failed(repaired(with_terms(audit_members, config=config | {"drawn": drawn})), "terms")
    other = with_cell(audit_members, lambda s: s | {"beacon": None}, cell=AUDIT)
    failed(repaired(other), "models")


def test_a_cell_left_out_is_noticed_at_every_depth(tmp_path: Path) -> None:
    whole = unpack(certify(write_small(tmp_path / "run", seeds=(0, 1))).read_bytes())
    assert examine(pack(whole)).ok
    less = {name: data for name, data in whole.items() if "seed1" not in name}
    failed(pack(less), "digests")
    failed(repaired(less), "cells")
    failed(repaired(with_terms(less, cells=[STUDY])), "cells")
    config = value(less, "terms.json")["terms"]["config"] | {"seeds": [0]}
    failed(repaired(with_terms(less, cells=[STUDY], config=config)), "record")
    copied = whole | {
        name.replace("seed0", "seed1"): data for name, data in whole.items() if "seed0" in name
    }
    failed(repaired(with_record(copied)), "record")


def test_a_headroom_left_out_added_or_changed_is_noticed(
    tmp_path: Path, audit_members: Members
) -> None:
    name = f"cells/{AUDIT}/headroom.parquet"
    held = unpack(certify(write_audit(tmp_path / "run", evidence=2.9)).read_bytes())
    other = unpack(certify(write_audit(tmp_path / "other", evidence=2.8)).read_bytes())
    left_out = {file: data for file, data in held.items() if file != name}
    for changed in (left_out, held | {name: other[name]}, audit_members | {name: held[name]}):
        failed(repaired(changed))


def test_what_verification_cannot_notice_is_a_bundle_made_up_whole(members: Members) -> None:
    """The limit that the certificate states: everything, from the terms on, made again."""
    verification = examine(repaired(made_up(with_rules(members, detection_power=0.9))))
    assert verification.ok, verification.failure
    assert "could invent" in verification.what_it_means
    # Terms published beforehand, or a signature, show it.
    assert verification.terms != examine(pack(members)).terms
