"""The checks of a bundle, in order: each returns in words what holds, or raises; and what they say
together.

A check may rely on those before it. What a bundle says is not believed where it can be computed:
the models that each cell should hold follow from the terms, the verdicts from the scores. What its
maker alone can know, above all the scores, is taken as it is; ``MEANS_NOT`` says so.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

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
)
from palimpsest.certificate.signature import check_envelope
from palimpsest.config.plan import model_title
from palimpsest.errors import BundleError, PalimpsestError
from palimpsest.facts.sealed import check_commitment, verify
from palimpsest.run.files import canonical, digest, safe_name
from palimpsest.run.store import ROSTERS, TERMS
from palimpsest.stats.axes import AXES, axis
from palimpsest.stats.models import Model, Role, models_from_json
from palimpsest.text import escaped, shown

State = Literal["ok", "self-signed", "unsigned", "failed"]
ANSWERS: dict[State, str] = {
    "ok": "ok (all checks passed, and it is signed with the key you gave)",
    "self-signed": "self-signed (all checks passed; signed by a key that nobody named)",
    "unsigned": "unsigned (all checks passed; it carries no signature)",
    "failed": "FAILED",
}
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
FAILED = (
    "The bundle does not verify: something in it is missing, changed, not signed as asked, or does "
    "not follow. Do not rely on any of it; ask its maker for another copy."
)
CUSTOM = "Its rules are not the default: what is certified is so under custom rules."
UNSIGNED = "It is unsigned, so it says nothing about who ran it."
SELF_SIGNED = "Its signature was checked with the key inside the bundle, which anyone could make."
SIGNED = "It was signed with the key you gave; whose key that is, you must know from elsewhere."
NO_VERDICT = "There is no verdict, since no candidate could be made."
_LONGEST_LINE = 2_000
"""Characters of a line that is shown."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what holds, or what is wrong."""

    name: str
    state: State
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a bundle verifies, check by check, and what that does and does not mean."""

    checks: tuple[Check, ...]
    """Up to the first that failed; later ones depend on it."""
    what_it_means: str
    not_reached: tuple[str, ...] = ()
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """Each cell's verdict in words; empty unless everything holds."""
    terms: str = ""
    """The digest of configuration, rules, cells and seal; compare it with one published before."""
    signer: str | None = None
    """The signing key's digest; None when unsigned."""
    custom_rules: Mapping[str, list[Any]] = field(default_factory=dict)
    """Rules that differ from the default: default and own value, by name."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What the statement says of each cell's verdict, which was recomputed."""
    data: bytes = field(default=b"", repr=False, compare=False)
    """The bundle as it was read and verified; no part of the JSON document."""

    def __repr__(self) -> str:
        return f"<Verification: {ANSWERS[self.answer]}; {len(self.verdicts)} verdicts>"

    @property
    def answer(self) -> State:
        """``ok`` only when signed with the key that the reader gave; else the weakest of all."""
        states = {check.state for check in self.checks}
        weakest: tuple[State, ...] = ("failed", "unsigned", "self-signed")
        return next((state for state in weakest if state in states), "ok")

    @property
    def ok(self) -> bool:
        """Whether no check failed, signed or not; ``answer`` tells which."""
        return self.answer != "failed"

    @property
    def failure(self) -> Check | None:
        """The check that failed, after which none was made."""
        return next((check for check in self.checks if check.state == "failed"), None)

    def require(self, name: str) -> None:
        """Raise BundleError, saying what is wrong, unless everything holds."""
        if self.failure is not None:
            raise BundleError(f"{name} does not verify: {self.failure.name}: {self.failure.what}")

    def lines(self) -> list[str]:
        """Return the result for a person, one line at a time: the answer, then the checks."""
        lines = [*self.heading(), ""]
        lines += [f"{cell}: {words}" for cell, words in self.verdicts.items()]
        lines += [""] if self.verdicts else []
        lines += [
            f"{'FAILED' if check.state == 'failed' else check.state:11}  {check.name}: {check.what}"
            for check in self.checks
        ]
        lines += [f"not reached: {', '.join(self.not_reached)}"] if self.not_reached else []
        return [inert(line) for line in (*lines, "", *self.what_it_means.splitlines())]

    def heading(self) -> list[str]:
        """Return the answer, who signed, and the digests that tell this bundle from another."""
        lines = [f"Answer: {ANSWERS[self.answer]}"]
        lines += [f"Signer: {self.signer}"] if self.signer else []
        lines += [f"Terms of the run: {self.terms}"] if self.terms else []
        return [*lines, f"Bundle: {digest(self.data)}"] if self.data else lines

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        whole = {key: value for key, value in asdict(self).items() if key != "data"}
        lists = {"checks": list(whole["checks"]), "not_reached": list(self.not_reached)}
        named = {"bundle": digest(self.data)} if self.data else {}
        return {"answer": self.answer} | named | whole | lists


def inert(text: str) -> str:
    """Return the text, bounded, with everything escaped that could act on a terminal."""
    kept = escaped(text)
    return kept if len(kept) <= _LONGEST_LINE else f"{kept[:_LONGEST_LINE]}..."


def examine(data: bytes, public: bytes | None = None) -> Verification:
    """Return the verification of a bundle's bytes, given the 32 bytes of a public key or None."""
    bundle = Bundle(data, public)
    checks: list[Check] = []
    for number, check in enumerate(CHECKS, 1):
        state: State = "ok"
        try:
            what = check(bundle)
            if check is signature and public is None:
                state = "unsigned" if bundle.signer is None else "self-signed"
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
    signer = None if bundle.signer is None else digest(bundle.signer)
    custom: dict[str, list[Any]] = bundle.stated["predicate"]["custom_rules"]
    means = [MEANS, *([CUSTOM] if custom else []), "What it is, and is not:", *SCOPE, MEANS_NOT]
    means.append(SIGNED if public else SELF_SIGNED if signer else UNSIGNED)
    verdicts = {
        cell.id: inert(cell.verdict.paragraph() if cell.verdict else NO_VERDICT)
        for cell in bundle.results.cells
    }
    words = "\n".join(means)
    stated = {n: cell["verdict"] for n, cell in bundle.stated["predicate"]["cells"].items()}
    return Verification(
        tuple(checks), words, (), verdicts, bundle.terms.digest, signer, custom, stated, data
    )


def _require(where: str, found: Any, expected: Any) -> None:
    """Raise BundleError unless two JSON values are equal, naming the first place where they are
    not."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            _require(f"{where}, {key}", found.get(key, "nothing"), expected.get(key, "nothing"))
    elif canonical(found) != canonical(expected):  # as text: true and 1 are not the same
        raise BundleError(f"{where}: {shown(found)} found; expected {shown(expected)}")


# -- the files and who signed them -----------------------------------------------------------------


def archive(bundle: Bundle) -> str:
    return f"{len(bundle.members)} files, each once"


def digests(bundle: Bundle) -> str:
    stated, members = bundle.stated, bundle.members.items()
    kinds = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}
    _require(STATEMENT, {key: stated[key] for key in kinds}, kinds)
    listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
    there = {name: digest(data) for name, data in members if name not in (STATEMENT, ENVELOPE)}
    _require("files", there, listed)
    return f"all {len(there)} files have the SHA-256 that the statement lists, none is missing"


def signature(bundle: Bundle) -> str:
    signer, given = bundle.signer, bundle.public
    if given is not None and signer != given:
        found = "not signed" if signer is None else f"signed by key {digest(signer)}"
        raise BundleError(f"{found}; expected a signature by key {digest(given)}")
    if signer is None:
        if ENVELOPE in bundle.members:
            raise BundleError(f"{ENVELOPE} is there, and the statement names no signer")
        return "nothing here says who made the bundle"
    check_envelope(bundle.document(ENVELOPE), bundle.members[STATEMENT], signer)
    if given is None:
        return (
            f"signed by a key that nobody named, {digest(signer)}, which is in the bundle itself; "
            "give the maker's public key, obtained elsewhere, with --key"
        )
    return f"valid by the key you gave, {digest(given)}"


# -- what the run was to be ------------------------------------------------------------------------


def terms(bundle: Bundle) -> str:
    terms = bundle.terms
    count, words = len(planned_cells(terms)), ""
    if terms.kind == "audit":
        drawn = terms.config["drawn"]
        _require("draw", drawn, Beacon(drawn["beacon"], drawn["bound"]).record())
        text = f"the text {shown(drawn['beacon'])}, which the maker says was published later, and "
        source = f"{text if drawn['beacon'] else ''}the digests"
        words = f"; schedule and phrasings are drawn from {source} of {len(drawn['bound'])} models"
    return f"configuration, rules and seal of {count} cells{words}"


def rules(bundle: Bundle) -> str:
    # A user's own facts may not allow what needs a measure of its own.
    own = bundle.terms.kind == "audit" or bundle.terms.config["facts"]["files"]
    allowed = [entry.name for entry in AXES if entry.measure is not None and own]
    if left_out := [name for name in bundle.rules.unmeasured_axes if name not in allowed]:
        raise BundleError(
            f"the rules leave out {', '.join(left_out)}, which every run measures; expected every "
            "standard axis"
        )
    changed = [
        f"{name} {json.dumps(own)} (default {json.dumps(default)})"
        for name, (default, own) in bundle.rules.differences().items()
    ]
    words = f"CUSTOM RULES: {', '.join(changed)}" if changed else "every rule has its default"
    return f"{words} ({bundle.terms.rules_hash})"


def rosters(bundle: Bundle) -> str:
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


def cells(bundle: Bundle) -> str:
    expected = {TERMS, ROSTERS, STATEMENT}
    made_under = [roster.digest for roster in bundle.rosters]
    for cell_id, (place, seed) in planned_cells(bundle.terms).items():
        title = model_title(place)
        name, summary = cell_file(safe_name(cell_id, "cell id")), bundle.summaries[cell_id]
        _require(name, [summary[k] for k in ("cell", "model", "seed")], [cell_id, title, seed])
        if summary["roster"] not in made_under:
            raise BundleError(f"{name}: of a run with other terms or another list of models")
        files = table_files(cell_id, summary)
        recorded = {file: summary["artifacts"].get(f"{t}.parquet") for t, file in files.items()}
        _require(name, recorded, {file: digest(bundle.file(file)) for file in files.values()})
        expected |= {name, *files.values()} | ({REVEAL} if bundle.is_sealed(cell_id) else set())
    found = bundle.members.keys() - {ENVELOPE}
    _require("files", dict.fromkeys(found, "a file"), dict.fromkeys(expected, "a file"))
    words = f"all {len(bundle.summaries)} planned cells are here, with their tables"
    if taken := origins(bundle.summaries.values()):
        words += f"; some steps were taken over from another run (--reuse), made under {taken[0]}"
    return words


def models(bundle: Bundle) -> str:
    """Exactly the planned models, in their planned roles.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    count = 0
    for cell_id, summary in bundle.summaries.items():
        plan, found = bundle.plan(cell_id), models_from_json(summary["models"])
        planned = {model.name: model for model in plan.models}
        if len(found) != len(summary["models"]):
            raise BundleError(f"cell {cell_id}: two models of one name")
        bare = {name: _as_planned(model, planned.get(name, model)) for name, model in found.items()}
        _require(f"cell {cell_id}", bare, {name: m.to_json() for name, m in planned.items()})
        _require(f"cell {cell_id}, beacon", summary["beacon"], plan.beacon)
        count += len(found)
    return f"all {count} planned models are in their cells, in their roles, and no other"


def _as_planned(model: Model, planned: Model) -> dict[str, Any]:
    """Return the record of a model without what only its files or its making show."""
    bare = replace(model, digest="", recipe={}, cost=None, failure=None, diverged=None, roster="")
    weights = model.weights if planned.weights else ""
    return replace(bare, wrapper=False, weights=weights).to_json()


def scores(bundle: Bundle) -> str:
    """The planned models and facts are those scored."""
    rows = 0
    for cell_id, summary in bundle.summaries.items():
        where, tables = f"cell {cell_id}", bundle.tables[cell_id]
        models = models_from_json(summary["models"]).values()
        # A model that failed in re-acquisition may have left the scores made before.
        failed = {model.name for model in models if model.failure is not None}
        scored = {n for t, table in tables.items() if t != "headroom" for n in table["model"]}
        listed = dict.fromkeys({model.name for model in models} - failed, "scored")
        _require(where, dict.fromkeys(scored - failed, "scored"), listed)
        items = tables["items"]
        for which, count in bundle.plan(cell_id).facts.items():
            facts = {row[0] for row in summary["facts"][which]}
            asked = sorted(set(items["fact"][items["set"] == which]))
            _require(f"{where}, {which} facts", [len(facts), asked], [count, sorted(facts)])
        measured = set(tables["measures"]["measure"]) if "measures" in tables else set()
        for name in bundle.rules.unmeasured_axes:
            if axis(name).measure in measured:
                raise BundleError(f"{where}: {name} was measured; the rules leave it out")
        rows += sum(len(table["model"]) for table in tables.values())
    return f"{rows} rows of scores; every listed model is scored or failed, and no other"


def seal(bundle: Bundle) -> str:
    commitment = check_commitment(bundle.terms.seal["commitment"])
    if bundle.terms.kind != "study":
        return f"the held-out questions were fixed as {commitment}; they are not in the bundle"
    own = bundle.terms.config["seal"]
    _require("seal of the configuration", own or commitment, commitment)
    for cell_id in bundle.summaries:
        _check_scored_once(cell_id, bundle)
    if REVEAL not in bundle.members:
        return f"the sealed pool ({commitment}) was never opened"
    verify(bundle.pool, commitment)
    public = "" if own else " (the built-in pool, which is public)"
    return f"the revealed pool is the one committed to, and was scored once{public}"


def _check_scored_once(cell_id: str, bundle: Bundle) -> None:
    """Raise BundleError unless every model that the sealed pool is opened for, and no other, has as
    many scores on it as it has questions."""
    summary, items = bundle.summaries[cell_id], bundle.tables[cell_id]["items"]
    sealed = items["pool"] == "audit"
    expected: dict[str, int] = {}
    if bundle.is_sealed(cell_id):
        facts = [fact for which in {*items["set"][sealed]} for fact in summary["facts"][which]]
        questions = sum(len(bundle.pool.phrasings[relation]) for _, relation in facts)
        roles = (Role.BASE, Role.INJECTED, Role.KNOWN_LABEL)
        models = models_from_json(summary["models"]).values()
        opened = (m for m in models if (m.role in roles or m.same_draw) and m.failure is None)
        expected = {model.name: questions for model in opened}
    found = dict(Counter(items["model"][sealed]))
    _require(f"cell {cell_id}, scores on the sealed pool", found, expected)


# -- what follows from it --------------------------------------------------------------------------


def verdicts(bundle: Bundle) -> str:
    expected = statement(bundle, bundle.stated["predicate"]["signer"])
    _require(STATEMENT, _rounded(bundle.file(STATEMENT)), _rounded(expected))
    count = len(bundle.results.judged)
    return f"all {count}, recomputed from the scores by these rules, are those stated"


def _rounded(statement: bytes) -> Any:
    """Return a statement's values, numbers to nine digits: libraries add up in different orders on
    different machines, so the last digits of a mean may differ there; a decision may not."""
    return json.loads(statement, parse_float=lambda number: f"{float(number):.9g}")


CHECKS: tuple[Callable[[Bundle], str], ...] = (
    *(archive, digests, signature),
    *(terms, rules, rosters),
    *(cells, models, scores, seal),
    verdicts,
)
