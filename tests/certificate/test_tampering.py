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
    mended,
    recorded,
    value,
    with_items,
    with_journal,
    with_rules,
    with_terms,
    with_verdicts,
    written,
)
from small_run import NONCE, write_small, write_small_audit
from tests.reliability import FULL, count

from palimpsest.certificate import certify, evidence, judge
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.bundle import statement
from palimpsest.certificate.signature import read_public
from palimpsest.certificate.verify import Verification, examine
from palimpsest.errors import BundleError
from palimpsest.run.chain import ORIGIN, chain_bytes, verify_chain

CELL = "cells/m--seed0"


def failed(data: bytes, where: str = "") -> Verification:
    """The verification, which must have failed (at the check named)."""
    found = examine(data)
    assert not found.ok
    assert found.failure is not None
    assert not found.verdicts
    assert "cannot be checked" not in found.failure.what, found.failure
    if where:
        assert found.failure.name == where, found.failure
    return found


# -- bytes ---------------------------------------------------------------------------------------


def passing_flips(data: bytes, public: bytes | None, bits: Callable[[int], list[int]]) -> list[int]:
    """The bytes that can be changed without notice."""
    changed = bytearray(data)
    unnoticed = []
    for at in range(len(data)):
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
    signed: Path, keys: tuple[Path, Path]
) -> None:
    data, public = signed.read_bytes(), read_public(keys[1])
    assert examine(data, public).ok
    # The reader without a key notices as much.
    assert passing_flips(data, None, some_bits) == []
    if FULL:
        assert passing_flips(data, public, some_bits) == []


def test_every_truncation_and_anything_after_the_end_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for size in range(0, len(data), 1 if FULL else 37):
        count("truncated bundles, all found")
        failed(data[:size], "archive")
    for more in (b"\0", b"\n", b"PK", data):
        failed(data + more, "archive")
        failed(more + data)


def test_every_deletion_and_doubling_of_a_byte_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for at in range(0, len(data), 1 if FULL else 53):
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
    for one, other in pairwise(names):
        swapped = members | {one: members[other], other: members[one]}
        failed(pack(swapped))
        if "statement.json" not in (one, other):
            failed(mended(swapped))


def parts(data: bytes) -> tuple[list[bytes], bytes]:
    """Each file with its header, and what follows the last one."""
    members, at, found = unpack(data), 0, []
    for name, content in members.items():
        size = 30 + len(name) + len(content)
        found.append(data[at : at + size])
        at += size
    return found, data[at:]


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

    monkeypatch.setattr(evidence, "read_table", never)
    monkeypatch.setattr(judge, "MAX_TABLE_BYTES", 1_000)
    failed(pack(members), "scores")
    monkeypatch.setattr(judge, "MAX_TABLE_BYTES", 2**28)
    monkeypatch.setattr(evidence, "MAX_ROWS", 100)
    failed(pack(members), "scores")


@pytest.mark.parametrize("field", [2, 3, 7])
def test_pages_that_ask_for_more_than_the_footer_says_are_refused(
    field: int, members: Members
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
    forged = mended(with_journal(members | {name: bytes(data)}))
    assert "page" in failed(forged, "scores").checks[-1].what


def test_more_work_than_a_run_asks_for_is_refused(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_MODELS", "MAX_DRAWS", "MAX_FACTS", "MAX_PAIRS"):
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
    told = value(members, name)
    for change in (
        {"candidate": "a-w2"},
        {"status": "uncertified", "candidate": None, "reason": "all_excluded"},
        {"mode": "oracle-free"},
        {"numbers": told["numbers"] | {"alpha": 0.1}},
        {"findings": told["findings"][:1]},
    ):
        failed(mended(members | {name: written(told | change)}), "verdicts")
    failed(mended(members | {name: b"null\n"}), "verdicts")


def test_a_statement_that_says_more_than_the_files_is_noticed(members: Members) -> None:
    told = value(members, "statement.json")
    for change in ({"scope": []}, {"scope": ["Approved by everybody."]}, {"run": "another"}):
        other = told | {"predicate": told["predicate"] | change}
        failed(pack(members | {"statement.json": written(other)}), "statement")
    failed(pack(members | {"statement.json": written(told | {"more": 1})}), "statement")
    failed(pack(members | {"statement.json": written(told | {"_type": "other"})}), "digests")


def test_json_in_another_spelling_is_noticed(members: Members) -> None:
    for name in ("plan.json", "statement.json", f"{CELL}/cell.json", f"{CELL}/verdict.json"):
        data = members[name]
        for other in (data[:-1], b" " + data, data.replace(b":", b": ", 1), b"[" * 10**5, b"NaN\n"):
            failed(pack(members | {name: other}))
            if name != "statement.json":
                failed(mended(members | {name: other}))


def test_scores_changed_without_the_journal_are_noticed(members: Members) -> None:
    better = with_items(members, lambda items: items | {"nll_sum": items["nll_sum"] + 0.5})
    name = f"{CELL}/items.parquet"
    failed(mended(members | {name: better[name]}), "order")
    with_summary = {name: better[name], f"{CELL}/cell.json": better[f"{CELL}/cell.json"]}
    failed(mended(members | with_summary), "order")


def test_scores_that_do_not_give_the_verdict_are_noticed(members: Members) -> None:
    def worse(items: dict[str, Any]) -> dict[str, Any]:
        chosen = (items["model"] == "a-w1") & (items["pool"] == "evaluation")
        return items | {"nll_sum": np.where(chosen, items["nll_sum"] + 3.0, items["nll_sum"])}

    failed(mended(with_items(members, worse)), "verdicts")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308, -1e308])
def test_scores_that_are_no_numbers_are_no_verdict(bad: float, members: Members) -> None:
    def broken(items: dict[str, Any]) -> dict[str, Any]:
        return items | {"nll_sum": np.where(items["pool"] == "evaluation", bad, items["nll_sum"])}

    failed(mended(with_items(members, broken)), "verdicts")


def test_a_candidate_left_out_or_slipped_in_is_noticed(members: Members) -> None:
    def without(summary: dict[str, Any]) -> dict[str, Any]:
        return summary | {"candidates": ["a-w1"]}

    def renamed(summary: dict[str, Any]) -> dict[str, Any]:
        return summary | {"candidates": ["a-w1"], "failed": {"a-w3": "did not converge"}}

    failed(mended(with_verdicts(with_journal(members, summary=without))), "scores")
    failed(mended(with_verdicts(with_journal(members, summary=renamed))), "scores")

    def unscored(items: dict[str, Any]) -> dict[str, Any]:
        kept = items["model"] != "a-w2"
        return {name: values[kept] for name, values in items.items()}

    both = with_journal(with_items(members, unscored), summary=without)
    failed(mended(with_verdicts(both)), "scores")


def test_a_scored_candidate_called_failed_is_noticed(members: Members) -> None:
    def excused(summary: dict[str, Any]) -> dict[str, Any]:
        return summary | {"candidates": ["a-w1"], "failed": {"a-w2": "did not converge"}}

    failed(mended(with_verdicts(with_journal(members, summary=excused))), "scores")


def test_an_audit_with_other_candidates_than_its_terms_is_noticed(tmp_path: Path) -> None:
    members = unpack(certify(write_small_audit(tmp_path / "run")).read_bytes())
    plan = value(members, "plan.json")
    for models in (plan["models"][:-1], [["a-w3", "candidate"], *plan["models"][:-1]], [["x"]]):
        other = with_terms(members | {"plan.json": written(plan | {"models": models})})
        genesis = verify_chain(other["chain.jsonl"], ORIGIN).entries[3].digest
        rewritten = with_journal(members, cell="audit", genesis=genesis)
        other |= {name: data for name, data in rewritten.items() if name.startswith("cells/")}
        failed(mended(other), "cells" if models == [["x"]] else "scores")


def test_probes_left_out_are_noticed(members: Members) -> None:
    def fewer(items: dict[str, Any]) -> dict[str, Any]:
        kept = ~((items["set"] == "probe") & (items["fact"] == "p7"))
        return {name: values[kept] for name, values in items.items()}

    failed(mended(with_verdicts(with_items(members, fewer))), "scores")


# -- sealing -------------------------------------------------------------------------------------


def test_scoring_the_audit_pool_twice_is_noticed(members: Members) -> None:
    def opened_again(events: list[Any]) -> list[Any]:
        opening = next(data for event, data in events if event == "seal opened")
        return [*events, ("seal opened", opening), ("step", {"step": "panel-2", "artifacts": {}})]

    def scored_again(events: list[Any]) -> list[Any]:
        return [*events, ("step", {"step": "panel", "artifacts": {}})]

    def scored_under_another_name(events: list[Any]) -> list[Any]:
        return [*events, ("step", {"step": "panel-again", "artifacts": {}})]

    failed(mended(with_journal(members, opened_again)), "seal")
    failed(mended(with_journal(members, scored_again)), "order")
    failed(mended(with_journal(members, scored_under_another_name)), "seal")

    def twice(items: dict[str, Any]) -> dict[str, Any]:
        rows = np.flatnonzero(items["pool"] == "audit")
        again = np.concatenate([np.arange(len(items["pool"])), rows])
        return {name: values[again] for name, values in items.items()}

    def more_phrasings(items: dict[str, Any]) -> dict[str, Any]:
        longer = twice(items)
        template = longer["template"].copy()
        template[len(items["pool"]) :] += 6
        return longer | {"template": template}

    failed(mended(with_items(members, twice)), "scores")
    failed(mended(with_items(members, more_phrasings)), "scores")


def test_scoring_a_candidate_on_the_audit_pool_is_noticed(members: Members) -> None:
    def peeked(items: dict[str, Any]) -> dict[str, Any]:
        rows = np.flatnonzero((items["pool"] == "audit") & (items["model"] == "reference"))
        again = np.concatenate([np.arange(len(items["pool"])), rows])
        longer = {name: values[again] for name, values in items.items()}
        longer["model"][len(items["pool"]) :] = "a-w1"
        return longer

    failed(mended(with_items(members, peeked)), "scores")


def test_opening_the_seal_before_the_models_were_scored_is_noticed(members: Members) -> None:
    def early(events: list[Any]) -> list[Any]:
        started, models, opened, panel = events
        return [started, opened, models, panel]

    failed(mended(with_journal(members, early)), "seal")


def test_audit_scores_without_an_opening_are_noticed(members: Members) -> None:
    def unopened(events: list[Any]) -> list[Any]:
        return [event for event in events if event[0] != "seal opened"]

    failed(mended(with_journal(members, unopened)), "seal")


def test_opening_for_other_models_is_noticed(members: Members) -> None:
    def others(events: list[Any]) -> list[Any]:
        return [
            (e, d | {"models": d["models"] | {"injected": "sha256:other"}} if "models" in d else d)
            for e, d in events
        ]

    failed(mended(with_journal(members, others)), "seal")


def test_a_seal_before_the_rules_is_noticed(members: Members) -> None:
    plan, rules, cells, seal, *rest = recorded(verify_chain(members["chain.jsonl"], ORIGIN))
    for events in (
        [plan, seal, cells, rules, *rest],
        [plan, rules, seal, cells, *rest],
        [seal, plan, rules, cells, *rest],
        [plan, rules, cells, *rest, seal],
        [plan, rules, cells, seal],
        [plan, rules, cells, seal, *rest, rules],
        [plan, rules, cells, ("seal opened", {}), seal, *rest],
    ):
        failed(mended(members | {"chain.jsonl": chain_bytes(events)}), "terms")


def test_results_that_were_there_before_the_seal_are_noticed(members: Members) -> None:
    chain = verify_chain(members["chain.jsonl"], ORIGIN)
    for entry in chain.entries[:3]:
        forged = with_journal(members, genesis=entry.digest)
        failed(mended(forged), "order")
    failed(mended(with_journal(members, genesis=ORIGIN)), "order")


def test_a_threshold_changed_after_the_results_is_noticed_at_every_depth(members: Members) -> None:
    looser = with_verdicts(with_rules(members, relearn_margin=0.2))
    only_rules = members | {"rules.json": looser["rules.json"]}
    failed(mended(only_rules), "terms")
    failed(mended(looser), "terms")
    failed(mended(with_terms(only_rules)), "rules")
    # With the run's chain made again, the cells still began from the old terms.
    failed(mended(with_terms(looser)), "order")
    hash_only = value(members, "rules.json") | {"hash": "sha256:" + "0" * 64}
    failed(mended(with_terms(members | {"rules.json": written(hash_only)})), "rules")


def test_another_pool_or_nonce_than_the_sealed_one_is_noticed(members: Members) -> None:
    told = value(members, "reveal.json")
    relation = sorted(told["pool"]["phrasings"])[0]
    swapped = told["pool"]["phrasings"] | {relation: ["Something easier about {subject} and the"]}
    for other in (
        told | {"nonce": NONCE[::-1]},
        told | {"pool": told["pool"] | {"phrasings": swapped}},
        told | {"pool": told["pool"] | {"by": "fact"}},
        told | {"more": 1},
        {},
        [],
        None,
    ):
        failed(mended(members | {"reveal.json": written(other)}), "seal")


def test_a_cell_left_out_is_noticed_at_every_depth(tmp_path: Path) -> None:
    whole = unpack(certify(write_small(tmp_path / "run", seeds=2)).read_bytes())
    assert examine(pack(whole)).ok
    less = {name: data for name, data in whole.items() if "seed1" not in name}
    failed(pack(less), "digests")
    failed(mended(less), "cells")
    recalled = with_terms(less, cells=["m--seed0"])
    failed(mended(recalled), "cells")
    plan = value(less, "plan.json") | {"seeds": [0]}
    replanned = with_terms(less | {"plan.json": written(plan)}, cells=["m--seed0"])
    failed(mended(replanned), "order")


def test_a_cell_put_in_anothers_place_is_noticed(tmp_path: Path) -> None:
    whole = unpack(certify(write_small(tmp_path / "run", seeds=2)).read_bytes())
    copied = whole | {
        name.replace("seed0", "seed1"): data for name, data in whole.items() if "seed0" in name
    }
    failed(mended(copied), "order")


def test_what_verification_cannot_notice_is_a_bundle_made_up_whole(members: Members) -> None:
    """The limit that the certificate states: everything, from the terms on, made again."""
    made_up = with_terms(with_rules(members, relearn_margin=0.2))
    genesis = verify_chain(made_up["chain.jsonl"], ORIGIN).entries[3].digest
    old = unpack(pack(members))
    rewritten = with_journal(old, genesis=genesis)
    made_up |= {name: data for name, data in rewritten.items() if name.startswith("cells/")}
    made_up = with_verdicts(made_up)
    made_up["statement.json"] = statement(made_up, None)
    found = examine(pack(made_up))
    assert found.ok
    assert "could invent" in found.what_it_means
    # Terms published beforehand, or a signature, show it.
    assert found.terms != examine(pack(members)).terms
