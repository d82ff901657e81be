"""What a run's terms and candidate lists ask for, and whether its evidence is all of that.

Every model is known by its role, draw, share, source and knobs; nothing is read out of a name.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palimpsest.cell.beacon import Beacon
from palimpsest.certificate.bundle import Bundle, Listed, read_rules
from palimpsest.config.commands import TofuConfig
from palimpsest.config.plan import Plan
from palimpsest.errors import BundleError
from palimpsest.known import chosen, is_plugin, model_name
from palimpsest.methods import BUILT_IN
from palimpsest.run.files import canonical, digest
from palimpsest.run.store import Terms
from palimpsest.schema import build
from palimpsest.stats.axes import AXES, axis
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules
from palimpsest.text import shown

SETS = ("forget", "retain", "probe")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the terms of a run and its last candidate list ask for."""

    bases: Mapping[str, str]
    """Digest of the base's files, by cell."""
    draws: Mapping[str, Any]
    """What was drawn from a beacon, by cell; null without one."""
    trained: bool
    """Models are trained in the run; the first reference shares the injected model's draw."""
    references: int
    retrainings: int = 0
    known_label: Sequence[str] = ()
    """As the plan names them. No plug-in is imported for a run that was handed over: what it says
    of its truth is the maker's word."""
    injected: str = ""
    """Digest of a given injected model's files."""
    listed: Sequence[Listed] = ()
    excluded: frozenset[str] = field(default_factory=frozenset)
    """Names of references that the terms leave out of the comparison."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """How many of each set, where the terms say so."""

    @property
    def sealed(self) -> bool:
        """Known-label models are scored on the sealed pool."""
        return bool(self.known_label)


# -- from the terms --------------------------------------------------------------------------------


def plan_cells(terms: Terms, listed: Sequence[Listed]) -> Planned:
    """Return what the terms of a run and the last of its lists ask for."""
    plan = {"study": _plan_study, "audit": _plan_audit, "tofu": _plan_tofu}[terms.kind]
    return plan(terms, listed)


def _require_cells(terms: Terms, count: int) -> None:
    if not len(terms.cells) == len(set(terms.cells)) == count:
        raise BundleError(
            f"the terms list {len(terms.cells)} cells; expected the {count} that their "
            "configuration gives"
        )


def _plan_study(terms: Terms, listed: Sequence[Listed]) -> Planned:
    config = terms.config
    # Counted before they are listed: models times seeds may be more than memory holds.
    _require_cells(terms, len(config["models"]) * len(config["seeds"]))
    added = ("fact_counts", "known_label_models")
    plan = build(Plan, {key: v for key, v in config.items() if key not in added}, "config")
    cells = plan.cell_ids()
    if tuple(cells) != terms.cells:
        raise BundleError("the terms list other cells than their configuration gives")
    return Planned(
        bases={cell: terms.inputs[model] for cell, (model, _) in cells.items()},
        draws={
            c: Beacon(plan.beacon, {"cell": c}).record() if plan.beacon else None for c in cells
        },
        trained=True,
        references=plan.replication.draws + 1,
        retrainings=plan.replication.retrainings,
        known_label=plan.known_label,
        listed=listed,
        facts=config["fact_counts"],
    )


def _plan_audit(terms: Terms, listed: Sequence[Listed]) -> Planned:
    config = terms.config
    _require_cells(terms, 1)
    return Planned(
        bases=dict.fromkeys(terms.cells, terms.inputs["base"]),
        draws=dict.fromkeys(terms.cells, config["drawn"]),
        trained=False,
        references=sum(entry.role is Role.REFERENCE for entry in listed),
        injected=terms.inputs["injected"],
        listed=listed,
        excluded=frozenset(config["exclude"]),
        facts={name: config["fact_counts"][name] for name in SETS},
    )


def _plan_tofu(terms: Terms, listed: Sequence[Listed]) -> Planned:
    derived = ("template", "remarks")
    settings = {key: value for key, value in terms.config.items() if key not in derived}
    config = build(TofuConfig, settings, "config")
    _require_cells(terms, config.seeds)
    given = next(n for n in itertools.count() if f"given {n}" not in terms.inputs)
    counts = {"forget": config.forget_items, "retain": config.retain_items, "probe": config.probes}
    return Planned(
        bases=dict.fromkeys(terms.cells, terms.inputs["base"]),
        draws=dict.fromkeys(terms.cells),
        trained=config.train,
        references=config.draws + 1 if config.train else given - 1,
        listed=listed,
        facts=counts,
    )


def describe_lists(bundle: Bundle) -> str:
    """Return in words how many lists and candidates there were, and which are no longer listed."""
    *earlier, last = bundle.lists
    times = f"{len(bundle.lists)} lists, each fixed" if earlier else "one list fixed"
    words = f"{bundle.tried} candidates of this injected model were tried in this run, by {times} "
    words += "before its results; other runs are not seen"
    gone = {entry for listed in earlier for entry in listed} - set(last)
    if gone:
        names = ", ".join(sorted(f"{entry.role} {shown(entry.name)}" for entry in gone)[:5])
        words += f"; ATTENTION: {len(gone)} of earlier lists are not in the last one ({names})"
    return words


def check_rules(bundle: Bundle) -> None:
    """Raise BundleError unless the rules are those of the configuration, with every axis."""
    terms, rules = bundle.terms, bundle.rules
    asked = [entry.name for entry in AXES if entry.measure is not None]
    # An audit has no others; questions of TOFU cannot be asked the other way round.
    expected = rules if terms.kind == "audit" else read_rules(terms.config["rules"])
    if rules != (expected.without(*asked) if terms.kind == "tofu" else expected):
        raise BundleError("the rules differ from those of the run's configuration")
    allowed = () if terms.kind == "study" else asked
    if left_out := [name for name in rules.unmeasured_axes if name not in allowed]:
        raise BundleError(
            f"the rules leave out {', '.join(left_out)}, which every run measures; expected every "
            "standard axis"
        )


def check_draw(terms: Terms, lists: Sequence[Sequence[Listed]]) -> str:
    """Return in words what an audit's schedule and phrasings were drawn from; empty for others."""
    if terms.kind != "audit":
        return ""
    record = terms.config["drawn"]
    if Beacon(record["beacon"], record["bound"]).record() != record:
        raise BundleError("the recorded draw does not follow from its text and digests")
    source = "a published text and the digests" if record["beacon"] else "the digests"
    words = f"; schedule and phrasings were drawn from {source} of {len(record['bound'])} models"
    every = [entry for listed in lists for entry in listed]
    late = {entry.name for entry in every if record["bound"].get(entry.name) != entry.weights}
    if late:
        words += f"; ATTENTION: not of {', '.join(map(shown, sorted(late)[:5]))}, which may have "
        words += "been made when the draw was known"
    return words


# -- models ----------------------------------------------------------------------------------------


def require_models(
    cell_id: str, models: Mapping[str, Model], planned: Planned, rules: Rules
) -> None:
    """Raise BundleError unless exactly the planned models are there, in their planned roles.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    references = [model for model in models.values() if model.role is Role.REFERENCE]
    names = [model.name for model in sorted(references, key=lambda model: model.seed_no or 0)]
    expected = Counter(map(_identity, _expected(cell_id, planned, rules, names, models)))
    others = (Role.CANDIDATE, Role.GENERAL_ONLY)
    found = Counter(_identity(model) for model in models.values() if model.role not in others)
    for identity in (found - expected) + (expected - found):
        where = "not planned" if found[identity] > expected[identity] else "missing"
        raise BundleError(f"cell {cell_id}: a model is {where}: {shown(identity.decode(), 300)}")
    if sum(model.role is Role.GENERAL_ONLY for model in models.values()) > planned.trained:
        raise BundleError(f"cell {cell_id}: more general-only models than planned")
    _require_candidates(
        cell_id,
        [model for model in models.values() if model.role is Role.CANDIDATE],
        [entry for entry in planned.listed if entry.role is Role.CANDIDATE],
        sourced=bool(planned.injected),
    )
    _require_weights(cell_id, models)


def _identity(model: Model) -> bytes:
    """Return what decides a verdict about a model that no method made.

    As text: true and 1, or 0.5 and "0.5", must not pass for each other.
    """
    named = "" if model.role in (Role.RETRAINING, Role.CONTROL) else model.name
    place = [model.seed_no, model.same_draw, model.excluded, model.share, model.of]
    return canonical([model.role, named, *place, model.source, model.truth])


def _expected(
    cell_id: str,
    planned: Planned,
    rules: Rules,
    references: Sequence[str],
    models: Mapping[str, Model],
) -> Iterator[Model]:
    """Yield the models that were planned beside candidates; given the references' names, by draw.

    References of an audit have the names of the list; others may have any.
    """
    given = [entry for entry in planned.listed if entry.role is Role.REFERENCE]
    yield Model("base", Role.BASE, source=planned.bases[cell_id])
    yield Model("injected", Role.INJECTED, source=planned.injected)
    if planned.trained:
        yield Model("forget_only", Role.FORGET_ONLY)
    bag = [entry.name for entry in given] or list(references)[: planned.references]
    bag += ["one more reference"] * (planned.references - len(bag))
    for draw, name in enumerate(bag):
        yield Model(
            name,
            Role.REFERENCE,
            seed_no=draw,
            same_draw=planned.trained and draw == 0,
            excluded=name in planned.excluded,
            source=given[draw].files if given else "",
        )
    for draw in range(planned.retrainings):
        yield Model("", Role.RETRAINING, seed_no=draw + 1)
    compared = [name for name in bag if name not in planned.excluded]
    for share in rules.control_shares:
        for name in compared[: rules.control_mixtures]:
            yield Model("", Role.CONTROL, share=share, of=name)
    for name in planned.known_label:
        plain = Model(model_name(name), Role.KNOWN_LABEL)
        if is_plugin(name):
            word = models.get(plain.name, plain)
            yield replace(plain, share=word.share, truth=word.truth)
        else:
            (entry,) = chosen([name])
            yield replace(plain, share=entry.share, truth=str(entry.truth))


def _require_candidates(
    cell_id: str, found: Sequence[Model], listed: Sequence[Listed], *, sourced: bool
) -> None:
    """Raise BundleError unless each candidate is one that is listed, and each listed is there.

    sourced: a given model's record names the digest of its files.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    # A list names some knobs, a candidate has all: which setting it is may be open, but not
    # whether there is one setting for each.
    fits = [[_fits(model, entry, sourced) for entry in listed] for model in found]
    matched = maximum_bipartite_matching(csr_matrix(fits), "column") if found and listed else []
    for model, place in zip(found, matched):
        if place < 0:
            raise BundleError(f"cell {cell_id}: candidate {shown(model.name)} is not listed")
    if len(found) != len(listed):
        raise BundleError(f"cell {cell_id}: {len(found)} candidates; expected {len(listed)}")


def _fits(model: Model, entry: Listed, sourced: bool) -> bool:
    if entry.files:
        known = model.source == entry.files if sourced else not model.method
        return known and model.name == entry.name
    # The name of a plug-in's class is not the name of its method.
    ours = model.method == entry.name if entry.name in BUILT_IN else model.method not in BUILT_IN
    knobs: dict[str, Any] = json.loads(entry.knobs)
    return ours and all(model.knobs.get(knob) == value for knob, value in knobs.items())


def _require_weights(cell_id: str, models: Mapping[str, Model]) -> None:
    """Raise BundleError where a model has no digest, or a reference the weights of another."""
    weights: dict[str, str] = {}
    # References last, so that one with the weights of any other model is the one named.
    for model in sorted(models.values(), key=lambda model: model.role is Role.REFERENCE):
        if not model.digest and model.failure is None:
            raise BundleError(f"cell {cell_id}: {shown(model.name)} has neither weights nor fault")
        same = weights.setdefault(model.digest, model.name) if model.digest else model.name
        if model.role is Role.REFERENCE and same != model.name:
            raise BundleError(
                f"cell {cell_id}: reference {shown(model.name)} has the weights of {shown(same)}"
            )


def describe_recipes(models: Mapping[str, Model]) -> str:
    """Return in words how injected model and references were trained, where their records say."""
    compared = [m for m in models.values() if m.role in (Role.INJECTED, Role.REFERENCE)]
    stated: Counter[str] = Counter()
    for model in compared:
        # Data are shown as one digest; the statement has the digest of each file.
        parts = {k: digest(canonical(v)) if k == "data" else v for k, v in model.recipe.items()}
        stated[", ".join(f"{key} {value}" for key, value in sorted(parts.items()))] += 1
    del stated[""]
    total, unstated = len(compared), sum(bool(m.source and not m.recipe) for m in compared)
    words = [f"{count} of {total} by {shown(recipe, 300)}" for recipe, count in stated.items()]
    words += [f"{unstated} of {total} without a word"] if unstated else []
    return f"; stated recipes of injected model and references: {'; '.join(words)}" if words else ""


# -- scores ----------------------------------------------------------------------------------------


def require_scores(
    cell_id: str, bundle: Bundle, models: Mapping[str, Model], planned: Planned
) -> None:
    """Raise BundleError unless the listed models and planned facts are those scored."""
    facts, tables = bundle.summaries[cell_id]["facts"], bundle.tables[cell_id]
    items = tables["items"]
    own = [table for name, table in tables.items() if name != "headroom"]
    # A model that failed in re-acquisition may have left the scores made before.
    failed = {name for name, model in models.items() if model.failure is not None}
    for name in sorted(({n for table in own for n in table["model"]} ^ models.keys()) - failed):
        raise BundleError(
            f"cell {cell_id}: {shown(name)} is scored but not listed, or the other way round"
        )
    for which in SETS:
        listed = {row[0] for row in facts[which]}
        scored = set(items["fact"][items["set"] == which])
        if listed != scored or planned.facts.get(which, len(listed)) != len(listed):
            raise BundleError(
                f"cell {cell_id}: scores of {len(scored)} {which} facts; expected the planned ones"
            )
    measured = set(tables["measures"]["measure"]) if "measures" in tables else set()
    for name in bundle.rules.unmeasured_axes:
        if axis(name).measure in measured:
            raise BundleError(f"cell {cell_id}: {name} was measured, but the rules leave it out")


def require_once(cell_id: str, bundle: Bundle) -> None:
    """Raise BundleError unless the sealed pool's rows are those of its one opening."""
    items, summary = bundle.tables[cell_id]["items"], bundle.summaries[cell_id]
    opened = summary["opening"]["models"] if summary["opening"] else {}
    phrasings = bundle.pool.phrasings if bundle.pool else {}
    sealed = items["pool"] == "audit"
    columns = ("model", "stage", "set", "fact", "template")
    rows = list(zip(*(items[name][sealed].tolist() for name in columns)))
    asked = [
        ("forward", which, fact, n)
        for which in dict.fromkeys(["forget", "probe", *(row[2] for row in rows)])
        for fact, relation in summary["facts"][which]
        for n in range(len(phrasings[relation]) if phrasings else 0)
    ]
    # Counted before they are listed: the numbers may be anything.
    if len(rows) != len(opened) * len(asked) or set(rows) != {
        (model, *row) for model in opened for row in asked
    }:
        raise BundleError(
            f"cell {cell_id}: {len(rows)} scores on the sealed pool; expected one for each of the "
            f"{len(opened)} models it was opened for and each of {len(asked)} revealed phrasings"
        )
