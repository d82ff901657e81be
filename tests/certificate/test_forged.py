"""No forged evidence passes: models, roles, the sealed pool, terms, rules and record.

These forgers mend the statement and whatever else they know of.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import (
    Members,
    Summary,
    failed,
    made_up,
    mended,
    signed,
    value,
    with_cell,
    with_models,
    with_record,
    with_rows,
    with_rules,
    with_terms,
    with_verdicts,
    without_model,
    written,
)
from small_run import NONCE, SHARES, write_small, write_small_audit

from palimpsest.certificate import certify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.verify import examine

CELL = "cells/m--seed0"


# -- models left out, slipped in, or under other roles -------------------------------------------


@pytest.mark.parametrize(
    "model", ["a-w2", "reference-4", "control-50", "control-5", "panel:suppression", "base"]
)
def test_a_model_left_out_is_noticed_at_every_depth(model: str, members: Members) -> None:
    failed(mended(with_models(members, **{model: None})))
    if model == "base":
        return  # without which there is no verdict to forge
    whole = without_model(members, model)
    failed(mended(whole), "models")


def test_a_reference_left_out_of_an_audit_is_noticed(audit_members: Members) -> None:
    failed(mended(without_model(audit_members, "reference-4", "audit")), "models")
    failed(mended(without_model(audit_members, "control-25", "audit")), "models")


def test_a_model_slipped_in_is_noticed(members: Members) -> None:
    more = {"role": "reference", "draw": 5, "digest": "sha256:more"}
    failed(mended(with_models(members, **{"reference-5": more})), "models")
    candidate = {"role": "candidate", "digest": "sha256:more"}
    failed(mended(with_models(members, **{"a-w3": candidate})), "models")
    # In the place of another one: listed, but not scored.
    renamed = with_models(members, **{"a-w3": candidate, "a-w2": None})
    failed(mended(renamed), "scores")


def test_swapped_roles_are_noticed(members: Members, audit_members: Members) -> None:
    for role in ("candidate", "injected", "retraining", "control", "challenge", "", None):
        failed(mended(with_models(members, reference={"role": role})), "models")
    swap = {"a-w2": {"role": "reference", "draw": 0}, "reference": {"role": "candidate"}}
    failed(mended(with_models(members, **swap)), "models")
    failed(mended(with_models(audit_members, "audit", **swap)), "models")
    suppressor = {"panel:suppression": {"role": "control", "share": 0.5}}
    failed(mended(with_models(members, **suppressor)), "models")
    failed(mended(with_models(members, injected=None, base=None)))


def test_controls_with_other_shares_than_the_rules_are_noticed(members: Members) -> None:
    for share in (0.9, None, "0.5", SHARES[1]):
        failed(mended(with_models(members, **{"control-50": {"share": share}})), "models")
    exchanged = {"control-50": {"share": 0.05}, "control-5": {"share": 0.5}}
    failed(mended(with_models(members, **exchanged)), "verdicts")


def test_a_scored_model_called_failed_changes_the_verdict(members: Members) -> None:
    failure = {"failure": {"kind": "diverged", "reason": "at step 3"}}
    failed(mended(with_models(members, **{"control-25": failure})), "verdicts")


@pytest.mark.parametrize("twin", ["injected", "reference-1", "a-w1", "base"])
def test_a_reference_with_the_weights_of_another_model_is_noticed(
    twin: str, members: Members
) -> None:
    same = {"digest": f"sha256:{twin}"}
    assert "has the weights of" in failed(mended(with_models(members, reference=same)), "models")


def test_an_audit_with_other_models_than_its_plan_is_noticed(audit_members: Members) -> None:
    plan = value(audit_members, "plan.json")
    for models in (plan["models"][:-1], [["a-w3", "candidate"], *plan["models"][:-1]], [["x"]]):
        replanned = audit_members | {"plan.json": written(plan | {"models": models})}
        forged = made_up(replanned, ("audit",))
        failed(mended(forged), "cells" if models == [["x"]] else "models")


def test_probes_left_out_are_noticed(members: Members) -> None:
    def fewer(items: dict[str, Any]) -> dict[str, Any]:
        kept = ~((items["set"] == "probe") & (items["fact"] == "p7"))
        return {name: values[kept] for name, values in items.items()}

    failed(mended(with_verdicts(with_rows(members, fewer))), "scores")


# -- the sealed pool -----------------------------------------------------------------------------


def with_opening(members: Members, **changed: Any) -> Members:
    def change(summary: Summary) -> Summary:
        return summary | {"opening": signed(summary["opening"] | changed)}

    return with_cell(members, change)


def test_a_second_opening_of_the_sealed_pool_is_noticed(members: Members) -> None:
    opening = value(members, f"{CELL}/cell.json")["opening"]
    again = signed(opening | {"step": "panel-2"})
    failed(mended(with_record(members, lambda e: [*e, ("opened", again)])), "record")
    failed(mended(with_record(members, lambda e: [e[0], *e])), "record")

    def twice(summary: Summary) -> Summary:
        extra = summary["steps"][-1] | {"step": "panel-2"}
        return summary | {"steps": [*summary["steps"], extra]}

    failed(mended(with_cell(members, twice)), "seal")


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

    failed(mended(with_rows(members, twice)), "scores")
    failed(mended(with_rows(members, more_phrasings)), "scores")


def test_scoring_a_candidate_on_the_sealed_pool_is_noticed(members: Members) -> None:
    def peeked(items: dict[str, Any]) -> dict[str, Any]:
        rows = np.flatnonzero((items["pool"] == "audit") & (items["model"] == "reference"))
        again = np.concatenate([np.arange(len(items["pool"])), rows])
        longer = {name: values[again] for name, values in items.items()}
        longer["model"][len(items["pool"]) :] = "a-w1"
        return longer

    failed(mended(with_rows(members, peeked)), "scores")


def test_an_opening_for_other_models_steps_cells_or_pools_is_noticed(members: Members) -> None:
    models = value(members, f"{CELL}/cell.json")["opening"]["models"]
    for change in (
        {"models": models | {"injected": "sha256:other"}},
        {"models": models | {"unknown": "sha256:unknown"}},
        {"models": {}},
        {"models": None},
        {"step": "models"},
        {"cell": "m--seed1"},
        {"terms": "sha256:" + "0" * 64},
        {"commitment": "sha256:" + "5" * 64},
    ):
        failed(mended(with_opening(members, **change)), "seal")
    failed(mended(with_cell(members, lambda s: s | {"opening": None})), "seal")
    fewer = {name: models[name] for name in models if name != "injected"}
    failed(mended(with_opening(members, models=fewer)), "scores")


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
        failed(mended(members | {"reveal.json": written(other)}), "seal")


# -- terms, rules and record ---------------------------------------------------------------------


def test_a_reordered_record_is_noticed(members: Members) -> None:
    for reorder in (
        lambda events: events[::-1],
        lambda events: [*events[1:], events[0]],
        lambda events: [events[0], *events[2:], events[1]],
        lambda events: events[:-1],
        lambda events: [*events, events[-1]],
    ):
        failed(mended(with_record(members, reorder)), "record")


def test_steps_reordered_left_out_or_doubled_in_the_summary_are_noticed(members: Members) -> None:
    whole = value(members, f"{CELL}/cell.json")["steps"]
    needing = [whole[0], whole[1] | {"needs": {"models": whole[0]["digest"]}}]
    sound = with_cell(members, lambda s: s | {"steps": needing})
    assert examine(mended(sound)).ok
    for steps in (needing[::-1], needing[:1] * 2, [needing[1]]):
        failed(mended(with_cell(members, lambda s, steps=steps: s | {"steps": steps})), "record")
    # The manifests as they were, under other contents.
    other = [whole[0] | {"files": {"values.json": "sha256:other"}}, whole[1]]
    changed = with_cell(members, lambda s: s | {"steps": other}, manifests=False)
    failed(mended(changed), "record")
    failed(mended(with_cell(members, lambda s: s | {"steps": []})), "seal")
    for odd in (None, [], [{}], [{"step": 1, "files": {}, "needs": {}, "digest": ""}]):
        failed(mended(with_cell(members, lambda s, odd=odd: s | {"steps": [*whole, odd]})))


def test_results_made_under_other_terms_are_noticed(members: Members) -> None:
    other = "sha256:" + "0" * 64
    failed(mended(with_cell(members, terms=other)), "record")
    failed(mended(with_cell(members, lambda s: s | {"terms": other}, manifests=False)), "record")
    renamed = with_terms(members | {"seal.json": written({"commitment": other})})
    failed(mended(renamed), "record")


def test_a_threshold_changed_after_the_results_is_noticed_at_every_depth(members: Members) -> None:
    for change in ({"alpha": 0.01}, {"detection_limit": 0.5}, {"axes": ["forget", "retain"]}):
        looser = with_verdicts(with_rules(members, **change))
        only_rules = members | {"rules.json": looser["rules.json"]}
        failed(mended(only_rules), "terms")
        failed(mended(looser), "terms")
        failed(mended(with_terms(only_rules)), "rules")
        # With the terms made again, the cells were still made under the old ones.
        failed(mended(with_terms(looser)), "record")
    hash_only = value(members, "rules.json") | {"hash": "sha256:" + "0" * 64}
    failed(mended(with_terms(members | {"rules.json": written(hash_only)})), "rules")


def test_a_cell_left_out_is_noticed_at_every_depth(tmp_path: Path) -> None:
    whole = unpack(certify(write_small(tmp_path / "run", seeds=2)).read_bytes())
    assert examine(pack(whole)).ok
    less = {name: data for name, data in whole.items() if "seed1" not in name}
    failed(pack(less), "digests")
    failed(mended(less), "cells")
    failed(mended(with_terms(less, cells=["m--seed0"])), "cells")
    plan = value(less, "plan.json") | {"seeds": [0]}
    replanned = with_terms(less | {"plan.json": written(plan)}, cells=["m--seed0"])
    failed(mended(replanned), "record")
    copied = whole | {
        name.replace("seed0", "seed1"): data for name, data in whole.items() if "seed0" in name
    }
    failed(mended(with_record(copied)), "record")


def test_a_headroom_left_out_added_or_changed_is_noticed(
    tmp_path: Path, audit_members: Members
) -> None:
    name = "cells/audit/headroom.parquet"
    held = unpack(certify(write_small_audit(tmp_path / "run", 2.9)).read_bytes())
    other = unpack(certify(write_small_audit(tmp_path / "other", 2.8)).read_bytes())
    left_out = {file: data for file, data in held.items() if file != name}
    for changed in (left_out, held | {name: other[name]}, audit_members | {name: held[name]}):
        failed(mended(changed))


def test_a_summary_that_says_something_else_is_noticed(audit_members: Members) -> None:
    summary = value(audit_members, "summary.json")
    assert {"p", "test", "worst_axis", "references", "detection_limit", "controls"} <= set(summary)
    candidate = summary["candidates"]["a-w1"]
    for change in (
        {"p": 0.9},
        {"candidate": "a-w2"},
        {"detection_limit": 0.05},
        {"controls": summary["controls"][1:]},
        {"worst_axis": {"name": "forget", "direction": "low", "sd": -0.1}},
        {"candidates": {"a-w1": candidate | {"z": candidate["z"] | {"forget": 0.0}}}},
        {"paragraph": "Certified: everything."},
        {"exit_code": 3},
        {"rules_hash": "sha256:" + "0" * 64},
    ):
        forged = audit_members | {"summary.json": written(summary | change)}
        failed(mended(forged), "summary")
    without = {name: data for name, data in audit_members.items() if name != "summary.json"}
    failed(mended(without), "cells")


def test_what_verification_cannot_notice_is_a_bundle_made_up_whole(members: Members) -> None:
    """The limit that the certificate states: everything, from the terms on, made again."""
    verification = examine(mended(made_up(with_rules(members, dose_fraction=0.2))))
    assert verification.ok, verification.failure
    assert "could invent" in verification.what_it_means
    # Terms published beforehand, or a signature, show it.
    assert verification.terms != examine(pack(members)).terms
