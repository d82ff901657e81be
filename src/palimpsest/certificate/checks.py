"""The checks of a bundle, in order: each returns in words what holds, or raises.

A check may rely on those before it. What a bundle says is not believed where it can be computed:
the models that each cell should hold follow from the terms, the verdicts from the scores. What its
maker alone can know, above all the scores, is taken as it is; ``MEANS_NOT`` says so.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.planned import planned_cells
from palimpsest.certificate.bundle import (
    ENVELOPE,
    PREDICATE_TYPE,
    REVEAL,
    SCOPE,
    STATEMENT,
    STATEMENT_TYPE,
    Bundle,
    cell_file,
    origins,
    statement,
    table_files,
    unpack,
)
from palimpsest.certificate.signature import check_envelope, signer_key
from palimpsest.certificate.verification import FAILED, Check, State, Verification, inert
from palimpsest.errors import BundleError, PalimpsestError
from palimpsest.facts.sealed import check_commitment, verify
from palimpsest.run.files import canonical, digest, safe_name
from palimpsest.run.store import ROSTERS, TERMS
from palimpsest.stats.axes import AXES, axis
from palimpsest.stats.models import Model, Role, models_from_json
from palimpsest.stats.rules import Rules
from palimpsest.text import shown

MEANS = (
    "What was shown: the files are unchanged since the bundle was made; the verdicts follow from "
    "the stored scores under the rules in its terms; no planned cell, candidate, reference or "
    "control is left out; the sealed or held-out questions are those that its terms commit to."
)
MEANS_NOT = (
    "The scores themselves were not measured again: whoever makes a bundle could invent models, "
    "scores and terms together. Nothing in it shows when the terms were fixed: compare their "
    "digest with one that was published before the run."
)
CUSTOM = "The rules are not the default ({rules}): what is certified is so under custom rules."
UNSIGNED = "It is unsigned, so it says nothing about who ran it."
SELF_SIGNED = "Its signature was checked with the key inside the bundle, which anyone could make."
SIGNED = "It was signed with the key you gave; whose key that is, you must know from elsewhere."
NO_VERDICT = "There is no verdict, since no candidate could be made."


@dataclass(frozen=True)
class Evidence:
    """A bundle under examination, and the public key that its reader gave."""

    data: bytes
    public: bytes | None

    @cached_property
    def bundle(self) -> Bundle:
        return Bundle(unpack(self.data))

    @cached_property
    def stated(self) -> dict[str, Any]:
        stated: dict[str, Any] = self.bundle.document(STATEMENT)
        return stated

    @property
    def signer(self) -> str | None:
        """Digest of the key that the statement names; None when unsigned."""
        signed_by = self.stated["predicate"]["signer"]
        return None if signed_by is None else digest(signer_key(signed_by))


def examine(data: bytes, public: bytes | None = None) -> Verification:
    """Return the verification of a bundle's bytes, given the 32 bytes of a public key or None."""
    evidence = Evidence(data, public)
    checks: list[Check] = []
    for number, check in enumerate(CHECKS, 1):
        state: State = "ok"
        try:
            what = check(evidence)
            if check is signature and public is None:
                state = "unsigned" if evidence.signer is None else "self-signed"
        except PalimpsestError as error:
            what, state = str(error), "failed"
        except ImportError:
            raise  # a fault of this machine, not of the bundle
        except Exception as error:
            # The bytes may come from anyone: whatever they break, the answer is that they fail.
            what, state = f"not in the form that a run stores ({error!r})", "failed"
        checks.append(Check(check.__name__, state, inert(what)))
        if state == "failed":
            rest = tuple(check.__name__ for check in CHECKS[number:])
            return Verification(tuple(checks), FAILED, not_reached=rest)
    bundle = evidence.bundle
    custom = describe_rules(bundle.rules)
    who = UNSIGNED if evidence.signer is None else SELF_SIGNED if public is None else SIGNED
    means = [MEANS, *([CUSTOM.format(rules=custom)] if custom else [])]
    means += ["What it is, and is not:", *SCOPE, MEANS_NOT, who]
    results = bundle.results
    return Verification(
        tuple(checks),
        "\n".join(means),
        verdicts={
            cell.id: inert(cell.verdict.paragraph() if cell.verdict else NO_VERDICT)
            for cell in results.cells
        },
        terms=bundle.terms.digest,
        signer=evidence.signer,
        custom_rules=evidence.stated["predicate"]["custom_rules"],
    )


# -- the files and who signed them -----------------------------------------------------------------


def archive(evidence: Evidence) -> str:
    return f"{len(evidence.bundle.members)} files, each once"


def digests(evidence: Evidence) -> str:
    stated = evidence.stated
    kinds = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}
    if {key: stated[key] for key in kinds} != kinds:
        raise BundleError(f"{STATEMENT}: of another type or version; expected {kinds}")
    listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
    members = evidence.bundle.members.items()
    there = {name: digest(data) for name, data in members if name not in (STATEMENT, ENVELOPE)}
    for name in sorted(listed.keys() | there.keys()):
        found, expected = there.get(name, "no such file"), listed.get(name, "no such file")
        if found != expected:
            raise BundleError(f"{name}: {found}; the statement lists {expected}")
    return f"all {len(there)} files have the SHA-256 that the statement lists, none is missing"


def signature(evidence: Evidence) -> str:
    signer, bundle = evidence.signer, evidence.bundle
    expected = None if evidence.public is None else digest(evidence.public)
    if signer is None and ENVELOPE not in bundle.members:
        if expected is not None:
            raise BundleError(f"the bundle is not signed; expected a signature by {expected}")
        return "nothing here says who made the bundle"
    public = signer_key(evidence.stated["predicate"]["signer"])
    check_envelope(bundle.document(ENVELOPE), bundle.members[STATEMENT], public)
    if expected is None:
        return (
            f"signed by a key that nobody named, {signer}, which is in the bundle itself; give the "
            "maker's public key, obtained elsewhere, with --key"
        )
    if signer != expected:
        raise BundleError(f"signed by key {signer}; expected {expected}")
    return f"valid by the key you gave, {expected}"


# -- what the run was to be ------------------------------------------------------------------------


def terms(evidence: Evidence) -> str:
    terms = evidence.bundle.terms
    count, words = len(planned_cells(terms)), ""
    if terms.kind == "audit":
        drawn = terms.config["drawn"]
        if Beacon(drawn["beacon"], drawn["bound"]).record() != drawn:
            raise BundleError("the recorded draw does not follow from its text and digests")
        text = f"the text {shown(drawn['beacon'])}, which the maker says was published later, and "
        source = f"{text if drawn['beacon'] else ''}the digests"
        words = f"; schedule and phrasings are drawn from {source} of {len(drawn['bound'])} models"
    return f"configuration, rules and seal of {count} cells{words}"


def rules(evidence: Evidence) -> str:
    bundle = evidence.bundle
    # A user's own facts may not allow what needs a measure of its own.
    own = bundle.terms.kind == "audit" or bundle.terms.config["facts"]["files"]
    allowed = [entry.name for entry in AXES if entry.measure is not None and own]
    if left_out := [name for name in bundle.rules.unmeasured_axes if name not in allowed]:
        raise BundleError(
            f"the rules leave out {', '.join(left_out)}, which every run measures; expected every "
            "standard axis"
        )
    if custom := describe_rules(bundle.rules):
        return f"CUSTOM RULES: {custom} ({bundle.terms.rules_hash})"
    return f"every rule has its default ({bundle.terms.rules_hash})"


def rosters(evidence: Evidence) -> str:
    bundle = evidence.bundle
    *earlier, last = (
        {(entry["role"], entry["name"], canonical(entry)) for entry in roster.models}
        for roster in bundle.rosters
    )
    words = f"{bundle.tried} candidates of this injected model were tried in this run, by "
    words += f"{len(bundle.rosters)} lists" if earlier else "one list"
    words += "; other runs are not seen"
    if gone := sorted(set().union(*earlier) - last):
        names = ", ".join(f"{role} {shown(name)}" for role, name, _ in gone[:5])
        words += f"; ATTENTION: {len(gone)} of earlier lists are not in the last one ({names})"
    return words


# -- what the cells hold ---------------------------------------------------------------------------


def cells(evidence: Evidence) -> str:
    bundle = evidence.bundle
    expected, sealed = {TERMS, ROSTERS, STATEMENT}, False
    made_under = [roster.digest for roster in bundle.rosters]
    for cell_id, (title, seed) in planned_cells(bundle.terms).items():
        name, summary = cell_file(safe_name(cell_id, "cell id")), bundle.summaries[cell_id]
        if [summary["cell"], summary["model"], summary["seed"]] != [cell_id, title, seed]:
            raise BundleError(f"{name}: of another cell")
        if summary["roster"] not in made_under:
            raise BundleError(f"{name}: of a run with other terms or another list of models")
        files = table_files(cell_id, summary)
        for table, file in files.items():
            if summary["artifacts"].get(f"{table}.parquet") != digest(bundle.file(file)):
                raise BundleError(f"{name}: records another table {table} than the bundle's")
        expected |= {name, *files.values()}
        sealed = sealed or bundle.is_sealed(cell_id)
    expected |= {REVEAL} if sealed else set()
    for name in sorted(expected ^ (bundle.members.keys() - {ENVELOPE})):
        where = "missing" if name in expected else "not part of a certificate"
        raise BundleError(f"{name} is {where}; expected all files of all planned cells")
    words = f"all {len(bundle.summaries)} planned cells are here, with their tables"
    if taken := origins(bundle.summaries.values()):
        words += f"; some steps were taken over from another run (--reuse), made under {taken[0]}"
    return words


def models(evidence: Evidence) -> str:
    """Exactly the planned models, in their planned roles.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    count = 0
    for cell_id, summary in evidence.bundle.summaries.items():
        plan, found = evidence.bundle.plan(cell_id), models_from_json(summary["models"])
        planned = {model.name: model for model in plan.models}
        if len(found) != len(summary["models"]):
            raise BundleError(f"cell {cell_id}: two models of one name")
        for name in sorted(planned.keys() ^ found.keys()):
            where = "missing" if name in planned else "not planned"
            raise BundleError(f"cell {cell_id}: model {shown(name)} is {where}")
        for name, model in planned.items():
            # As text: true and 1 must not pass for each other.
            if canonical(_as_planned(found[name], model)) != canonical(model.to_json()):
                raise BundleError(f"cell {cell_id}: {shown(name)} is another model than planned")
        if canonical(summary["beacon"]) != canonical(plan.beacon):
            raise BundleError(f"cell {cell_id}: not measured by the schedule that was drawn")
        count += len(found)
    return f"all {count} planned models are in their cells, in their roles, and no other"


def _as_planned(model: Model, planned: Model) -> dict[str, Any]:
    """Return the record of a model without what only its files or its making show."""
    bare = replace(model, digest="", recipe={}, cost=None, failure=None, diverged=None, roster="")
    weights = model.weights if planned.weights else ""
    return replace(bare, wrapper=False, weights=weights).to_json()


def seal(evidence: Evidence) -> str:
    bundle = evidence.bundle
    commitment = check_commitment(bundle.terms.seal["commitment"])
    if bundle.terms.kind != "study":
        return f"the held-out questions were fixed as {commitment}; they are not in the bundle"
    own = bundle.terms.config["seal"]
    if own and own != commitment:
        raise BundleError("the seal is another one than the configuration names")
    for cell_id in bundle.summaries:
        _require_scored_once(cell_id, bundle)
    if bundle.pool is None:
        return f"the sealed pool ({commitment}) was never opened"
    verify(bundle.pool, commitment)
    public = "" if own else " (the built-in pool, which is public)"
    return f"the revealed pool is the one committed to, and was scored once{public}"


def _require_scored_once(cell_id: str, bundle: Bundle) -> None:
    """Raise BundleError unless the models that the plan opens the sealed pool for, and no other,
    were asked each of its questions once."""
    items, summary = bundle.tables[cell_id]["items"], bundle.summaries[cell_id]
    opened = [
        model.name
        for model in models_from_json(summary["models"]).values()
        if bundle.is_sealed(cell_id)
        and (model.role in (Role.BASE, Role.INJECTED, Role.KNOWN_LABEL) or model.same_draw)
        and model.failure is None
    ]
    phrasings = bundle.pool.phrasings if bundle.pool else {}
    sealed = items["pool"] == "audit"
    columns = ("model", "stage", "set", "fact", "template")
    rows = list(zip(*(items[name][sealed].tolist() for name in columns)))
    asked = [
        ("forward", which, fact, n)
        for which in dict.fromkeys(["forget", "probe", *(row[2] for row in rows)])
        for fact, relation in summary["facts"][which]
        for n in range(len(phrasings.get(relation, ())))
    ]
    # Counted before they are listed: the numbers may be anything.
    if len(rows) != len(opened) * len(asked) or set(rows) != {
        (model, *row) for model in opened for row in asked
    }:
        raise BundleError(
            f"cell {cell_id}: {len(rows)} scores on the sealed pool; expected one for each of "
            f"{len(opened)} models and {len(asked)} revealed questions"
        )


def scores(evidence: Evidence) -> str:
    """The planned models and facts are those scored."""
    bundle, rows = evidence.bundle, 0
    for cell_id, summary in bundle.summaries.items():
        tables, facts = bundle.tables[cell_id], summary["facts"]
        listed = models_from_json(summary["models"])
        # A model that failed in re-acquisition may have left the scores made before.
        failed = {name for name, model in listed.items() if model.failure is not None}
        scored = {n for t, table in tables.items() if t != "headroom" for n in table["model"]}
        for name in sorted((scored ^ listed.keys()) - failed):
            where = "scored, but not listed" if name in scored else "listed, but not scored"
            raise BundleError(f"cell {cell_id}: {shown(name)} is {where}")
        items = tables["items"]
        for which, count in bundle.plan(cell_id).facts.items():
            there = {row[0] for row in facts[which]}
            if len(there) != count or there != set(items["fact"][items["set"] == which]):
                raise BundleError(f"cell {cell_id}: other {which} facts scored than planned")
        measured = set(tables["measures"]["measure"]) if "measures" in tables else set()
        for name in bundle.rules.unmeasured_axes:
            if axis(name).measure in measured:
                raise BundleError(f"cell {cell_id}: {name} was measured; the rules leave it out")
        rows += sum(len(table["model"]) for table in tables.values())
    return f"{rows} rows of scores; every listed model is scored or failed, and no other"


# -- what follows from it --------------------------------------------------------------------------


def verdicts(evidence: Evidence) -> str:
    bundle, signed_by = evidence.bundle, evidence.stated["predicate"]["signer"]
    if differing := differences(evidence.stated, json.loads(statement(bundle, signed_by))):
        raise BundleError(f"{STATEMENT}: {differing[0][:300]}")
    count = len(bundle.results.judged)
    return f"all {count}, recomputed from the scores by these rules, are those stated"


CHECKS: tuple[Callable[[Evidence], str], ...] = (
    *(archive, digests, signature),
    *(terms, rules, rosters),
    *(cells, models, scores, seal),
    verdicts,
)


# -- in words, and compared ------------------------------------------------------------------------


def describe_rules(rules: Rules) -> str:
    """Return the rules that differ from the default in words; empty when none does."""
    parts = [
        f"{name} {json.dumps(own)} (default {json.dumps(default)})"
        for name, (default, own) in rules.differences().items()
    ]
    return ", ".join(parts)


def differences(stored: Any, expected: Any, where: str = "") -> list[str]:
    """Return where two JSON values differ: numbers by more than rounding, all else at all.

    Libraries add up in different orders on different machines, so the last digits of a mean may
    differ there; a decision may not.
    """
    keys: Iterable[Any] = ()
    if isinstance(stored, dict) and isinstance(expected, dict):
        keys, same = expected, stored.keys() == expected.keys()
    elif isinstance(stored, list) and isinstance(expected, list):
        keys, same = range(len(expected)), len(stored) == len(expected)
    elif type(stored) is float and type(expected) is float:
        same = math.isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12)
    else:
        same = type(stored) is type(expected) and stored == expected
    if not same:
        return [f"{where}: recorded {shown(stored)}, recomputed {shown(expected)}"]
    return [d for key in keys for d in differences(stored[key], expected[key], f"{where}.{key}")]
