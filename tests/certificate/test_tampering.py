"""No changed bundle passes: any byte, any file, any order, and forgers who mend their digests.

PALIMPSEST_FULL=1 flips every bit of every byte of a signed and an unsigned bundle.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import (
    Members,
    Summary,
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
from tests.reliability import FULL, count

from palimpsest.certificate import certify, evidence, judge, verify
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.signature import read_public
from palimpsest.certificate.verify import examine
from palimpsest.errors import BundleError

CELL = "cells/m--seed0"


def failed(data: bytes, where: str = "") -> str:
    """Return why a bundle fails, which it must (at the check named)."""
    verification = examine(data)
    assert verification.answer == "failed" and not verification.ok
    assert not verification.verdicts
    failure = verification.failure
    assert failure is not None
    assert "cannot be checked" not in failure.what, failure
    if where:
        assert failure.name == where, failure
    return failure.what


# -- bytes ---------------------------------------------------------------------------------------


def passing_flips(data: bytes, public: bytes | None, bits: Callable[[int], list[int]]) -> list[int]:
    """Return the bytes that can be changed without notice."""
    changed = bytearray(data)
    unnoticed = []
    for at in range(0, len(data), 1 if FULL else 7):
        for bit in bits(at):
            count("flipped bits of a bundle, all found")
            changed[at] ^= bit
            if examine(bytes(changed), public).ok:
                unnoticed.append(at)
            changed[at] ^= bit
    assert bytes(changed) == data
    return unnoticed


def some_bits(at: int) -> list[int]:
    return [1 << n for n in range(8)] if FULL else [1 << at % 8]


def test_every_single_byte_change_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    assert examine(data).ok
    assert passing_flips(data, None, some_bits) == []


def test_every_single_byte_change_of_a_signed_bundle_is_noticed(
    signed_bundle: Path, keys: tuple[Path, Path]
) -> None:
    data, public = signed_bundle.read_bytes(), read_public(keys[1])
    assert examine(data, public).ok
    # The reader without a key notices as much.
    assert passing_flips(data, None, some_bits) == []
    if FULL:
        assert passing_flips(data, public, some_bits) == []


def test_every_truncation_and_anything_after_the_end_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for size in range(0, len(data), 1 if FULL else 97):
        count("truncated bundles, all found")
        failed(data[:size], "archive")
    for more in (b"\0", b"\n", b"PK", data):
        failed(data + more, "archive")
        failed(more + data)


def test_every_deletion_and_doubling_of_a_byte_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for at in range(0, len(data), 1 if FULL else 131):
        failed(data[:at] + data[at + 1 :])
        failed(data[:at] + data[at : at + 1] + data[at:])


# -- files ---------------------------------------------------------------------------------------


def test_every_removed_file_is_noticed_even_when_the_statement_is_mended(members: Members) -> None:
    for name in members:
        rest = {other: data for other, data in members.items() if other != name}
        failed(pack(rest), "digests")
        if name != "statement.json":
            failed(mended(rest))


def test_every_renamed_file_is_noticed_even_when_the_statement_is_mended(members: Members) -> None:
    for name in members:
        rest = {other: data for other, data in members.items() if other != name}
        renamed = rest | {f"{name}x": members[name]}
        failed(pack(renamed), "digests")
        if name != "statement.json":
            failed(mended(renamed))


@pytest.mark.parametrize(
    "name", ["extra.txt", "cells/m--seed0/extra.json", "cells/other/cell.json", "models.bin"]
)
def test_an_added_file_is_noticed_even_when_the_statement_is_mended(
    name: str, members: Members
) -> None:
    failed(pack(members | {name: b"x"}), "digests")
    failed(mended(members | {name: b"x"}), "cells")


def test_an_envelope_nobody_signed_is_noticed(members: Members) -> None:
    failed(pack(members | {"statement.dsse.json": written({"signatures": []})}), "signature")


def test_exchanged_files_are_noticed(members: Members) -> None:
    names = sorted(members)
    for left, right in pairwise(names):
        swapped = members | {left: members[right], right: members[left]}
        failed(pack(swapped))
        if "statement.json" not in (left, right):
            failed(mended(swapped))


def parts(data: bytes) -> tuple[list[bytes], bytes]:
    """Return each file with its header, and what follows the last one."""
    members, at, files = unpack(data), 0, []
    for name, content in members.items():
        size = 30 + len(name) + len(content)
        files.append(data[at : at + size])
        at += size
    return files, data[at:]


def test_reordered_and_doubled_files_are_noticed(bundle: Path) -> None:
    files, rest = parts(bundle.read_bytes())
    assert b"".join([*files, rest]) == bundle.read_bytes()
    failed(b"".join([*files[::-1], rest]), "archive")
    for n, file in enumerate(files):
        failed(b"".join([*files[: n + 1], file, *files[n + 1 :], rest]), "archive")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "cells/../../evil.json",
        "/etc/evil.json",
        "C:evil.json",
        "cells\\evil.json",
        "cells//evil.json",
        "cells/.hidden",
        "a\0b",
        "cells/a/b/c.json",
        "é.json",
        "",
        "x" * 400,
    ],
)
def test_names_that_leave_the_folder_are_refused(name: str, bundle: Path, members: Members) -> None:
    with pytest.raises(BundleError, match="cannot name a file"):
        pack(members | {name: b"x"})
    # The same, packed by hand: the first file under the hostile name.
    data, first = bundle.read_bytes(), sorted(members)[0]
    label = name.encode()
    header = data[:26] + len(label).to_bytes(2, "little") + data[28:30]
    failed(header + label + data[30 + len(first) :], "archive")


def test_sizes_that_lie_are_refused_before_anything_is_allocated(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    for size in (0, 1, 2**31, 2**32 - 1):
        data[18:22] = data[22:26] = size.to_bytes(4, "little")
        failed(bytes(data), "archive")
    failed(b"PK\3\4" * 50_000, "archive")


def test_tables_that_say_they_are_too_large_are_refused_before_they_are_read(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(data: bytes, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(judge, "table_from_bytes", never)
    monkeypatch.setattr(judge, "MAX_TABLE_BYTES", 1_000)
    failed(pack(members), "scores")
    monkeypatch.setattr(judge, "MAX_TABLE_BYTES", 2**28)
    monkeypatch.setattr(evidence, "MAX_ROWS", 100)
    failed(pack(members), "scores")


@pytest.mark.parametrize("field", [2, 3, 7])
def test_pages_that_ask_for_more_than_the_footer_says_fail(
    field: int, members: Members, tmp_path: Path
) -> None:
    """Field 2 is what a page unpacks to, 3 what it is stored in, 7 the entries of a dictionary."""
    name = f"{CELL}/items.parquet"
    data = bytearray(members[name])
    # The first page, a dictionary: 15 04, then its sizes as 15 and a number, then its header.
    assert data[4:7] == b"\x15\x04\x15"
    at = 7
    if field > 2:
        at = data.index(0x15, at) + 1
    if field > 3:
        at = data.index(b"\x4c\x15", at) + 2
    while data[at] >= 128:
        data[at] = 255
        at += 1
    data[at] = 126
    forged = mended(with_cell(members | {name: bytes(data)}))
    (tmp_path / "forged.zip").write_bytes(forged)
    verification = verify(tmp_path / "forged.zip")
    assert verification.answer == "failed" and not verification.verdicts


def test_more_work_than_a_run_asks_for_is_refused(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_MODELS", "MAX_FACTS", "MAX_PAIRS"):
        with monkeypatch.context() as patch:
            patch.setattr(judge, limit, 1)
            failed(pack(members), "verdicts")
    assert examine(pack(members)).ok


def test_a_plan_of_more_cells_than_memory_holds_is_refused(members: Members) -> None:
    plan = value(members, "plan.json") | {
        "models": [f"m{n}" for n in range(50_000)],
        "seeds": list(range(50_000)),
    }
    failed(mended(with_terms(members | {"plan.json": written(plan)})), "cells")


# -- forgers who mend the statement --------------------------------------------------------------


def test_another_verdict_is_noticed(members: Members) -> None:
    name = f"{CELL}/verdict.json"
    verdict = value(members, name)
    uncertified = {"status": "uncertified", "candidate": None, "grade": None}
    looser = [control | {"rejected": True} for control in verdict["controls"]]
    for change in (
        {"candidate": "a-w2"},
        uncertified | {"reason": "all_excluded"},
        {"grade": "equivalent"},
        {"detection_limit": 0.05},
        {"dose": None},
        {"controls": looser},
        {"controls": verdict["controls"][1:]},
        {"numbers": verdict["numbers"] | {"alpha": 0.1}},
        {"findings": verdict["findings"][:1]},
        {"remarks": ["Approved."]},
    ):
        failed(mended(members | {name: written(verdict | change)}), "verdicts")
    failed(mended(members | {name: b"null\n"}), "verdicts")


@pytest.mark.parametrize("key", ["p", "test", "worst", "z", "gaps", "restored", "references"])
def test_another_comparison_is_noticed(key: str, members: Members) -> None:
    name = f"{CELL}/verdict.json"
    verdict = value(members, name)
    comparison = verdict["findings"][0]["comparison"]
    assert key in comparison
    comparison[key] = "other" if isinstance(comparison[key], str) else None
    failed(mended(members | {name: written(verdict)}), "verdicts")


def test_a_statement_that_says_more_than_the_files_is_noticed(members: Members) -> None:
    stated = value(members, "statement.json")
    for change in ({"scope": []}, {"scope": ["Approved by everybody."]}, {"run": "another"}):
        other = stated | {"predicate": stated["predicate"] | change}
        failed(pack(members | {"statement.json": written(other)}), "statement")
    failed(pack(members | {"statement.json": written(stated | {"more": 1})}), "statement")
    failed(pack(members | {"statement.json": written(stated | {"_type": "other"})}), "digests")


def test_json_in_another_spelling_is_noticed(members: Members) -> None:
    for name in ("plan.json", "statement.json", f"{CELL}/cell.json", f"{CELL}/verdict.json"):
        data = members[name]
        for other in (data[:-1], b" " + data, data.replace(b":", b": ", 1), b"[" * 10**5, b"NaN\n"):
            failed(pack(members | {name: other}))
            if name != "statement.json":
                failed(mended(members | {name: other}))


def test_scores_changed_without_the_summary_or_the_record_are_noticed(members: Members) -> None:
    better = with_rows(members, lambda items: items | {"nll_sum": items["nll_sum"] + 0.5})
    items, summary = f"{CELL}/items.parquet", f"{CELL}/cell.json"
    failed(mended(members | {items: better[items]}), "record")
    failed(mended(members | {items: better[items], summary: better[summary]}), "record")


def test_scores_that_do_not_give_the_verdict_are_noticed(members: Members) -> None:
    def worse(items: dict[str, Any]) -> dict[str, Any]:
        chosen = (items["model"] == "a-w1") & (items["pool"] == "evaluation")
        return items | {"nll_sum": np.where(chosen, items["nll_sum"] + 3.0, items["nll_sum"])}

    failed(mended(with_rows(members, worse)), "verdicts")

    def relearned(curves: dict[str, Any]) -> dict[str, Any]:
        chosen = curves["model"] == "a-w1"
        later = np.where(chosen, curves["forget_heldout_nll"] - 1.0, curves["forget_heldout_nll"])
        return curves | {"forget_heldout_nll": later}

    failed(mended(with_rows(members, relearned, tables=("curves",))), "verdicts")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308, -1e308])
def test_scores_that_are_not_finite_give_no_verdict(bad: float, members: Members) -> None:
    def broken(items: dict[str, Any]) -> dict[str, Any]:
        return items | {"nll_sum": np.where(items["pool"] == "evaluation", bad, items["nll_sum"])}

    failed(mended(with_rows(members, broken)), "verdicts")


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
