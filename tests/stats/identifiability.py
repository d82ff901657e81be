"""When oracle-free selection is possible at all, decided on finite classes of worlds.

A world fixes what a selector may see, X = (forget NLL q of each candidate, law nu of never-learned
probe NLLs, residual r of each candidate), and what it may not: the reference's forget level tau*
and each candidate's discrepancy d from the reference. A candidate is adequate when d <= epsilon
and q >= tau*. A selector is oracle-free when it is a function of X, and oracle-consistent when its
choice is adequate in every world.

Theorem: under threshold separation and residual soundness such a selector exists if and only if
tau* is a function of X. On a finite class both sides are decided by enumeration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from palimpsest.errors import InputError

Observable = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class World:
    """One world; candidates are indexed in a fixed order, which also resolves ties."""

    name: str
    forget_nlls: tuple[float, ...]
    """q: forget NLL of each candidate."""
    probe_law: tuple[float, ...]
    """nu: never-learned probe NLLs under the injected model, as sorted equally likely values."""
    residuals: tuple[float, ...]
    """r: round-trip residual of each candidate."""
    threshold: float
    """tau*: the reference's own forget level; hidden from a selector."""
    discrepancies: tuple[float, ...]
    """d: distance of each candidate from the reference; hidden from a selector."""

    def __post_init__(self) -> None:
        lengths = {len(self.forget_nlls), len(self.residuals), len(self.discrepancies)}
        if len(lengths) != 1 or lengths == {0}:
            raise InputError(
                f"world {self.name}: forget NLLs, residuals and discrepancies have lengths "
                f"{sorted(lengths)}; expected one of each per candidate, at least one candidate"
            )

    @property
    def observable(self) -> Observable:
        """X: all a selector may depend on."""
        return (self.forget_nlls, tuple(sorted(self.probe_law)), self.residuals)

    def adequate(self, epsilon: float) -> frozenset[int]:
        """A*: candidates close to the reference that forgot at least as much as it."""
        return frozenset(
            a
            for a, (q, d) in enumerate(zip(self.forget_nlls, self.discrepancies))
            if d <= epsilon and q >= self.threshold
        )


Selector = Callable[[Observable], int]


@dataclass(frozen=True, slots=True)
class Identifiability:
    """What enumeration finds on a class of worlds."""

    identifiable: bool
    """tau* is a function of the observable."""
    thresholds: dict[Observable, float] | None
    """That function, when it exists."""
    conflict: tuple[World, World] | None
    """Two worlds that look alike and differ in tau*, when it does not."""
    selector: dict[Observable, int] | None
    """An oracle-consistent choice for every observable, when one exists."""
    forbidding: tuple[World, ...] | None
    """A smallest set of look-alike worlds sharing no adequate candidate, when none exists."""
    separated: bool
    """Threshold separation (TR) holds."""
    sound: bool
    """Residual soundness (RS) holds."""

    @property
    def selectable(self) -> bool:
        """An oracle-free oracle-consistent selector exists."""
        return self.selector is not None


def decide_identifiability(worlds: Sequence[World], epsilon: float) -> Identifiability:
    """Both sides of the theorem on this class, with the witnesses for each."""
    if not worlds:
        raise InputError("the class of worlds is empty; give at least one world")
    conflict = find_conflict(worlds)
    classes = _look_alikes(worlds)
    selector: dict[Observable, int] | None = {}
    forbidding: tuple[World, ...] | None = None
    for observable, members in classes.items():
        common = frozenset.intersection(*(world.adequate(epsilon) for world in members))
        if common and selector is not None:
            selector[observable] = _preferred(observable, common)
        elif not common:
            selector = None
            forbidding = forbidding or _smallest_forbidding(members, epsilon)
    return Identifiability(
        identifiable=conflict is None,
        thresholds=None if conflict else {w.observable: w.threshold for w in worlds},
        conflict=conflict,
        selector=selector,
        forbidding=forbidding,
        separated=threshold_separation(worlds, epsilon),
        sound=residual_soundness(worlds, epsilon),
    )


def find_conflict(worlds: Sequence[World]) -> tuple[World, World] | None:
    """Two worlds that look alike and differ in tau*; None when it is identifiable."""
    seen: dict[Observable, World] = {}
    for world in worlds:
        twin = seen.setdefault(world.observable, world)
        if twin.threshold != world.threshold:
            return twin, world
    return None


def threshold_separation(worlds: Sequence[World], epsilon: float) -> bool:
    """TR: look-alike worlds with different thresholds share no adequate candidate."""
    return all(
        one.threshold == other.threshold or not (one.adequate(epsilon) & other.adequate(epsilon))
        for members in _look_alikes(worlds).values()
        for one, other in combinations(members, 2)
    )


def residual_soundness(worlds: Sequence[World], epsilon: float) -> bool:
    """RS: among candidates past tau* there is one, and the smallest residual is near the
    reference."""
    for world in worlds:
        choice = select(world.observable, world.threshold)
        if choice is None or world.discrepancies[choice] > epsilon:
            return False
    return True


def select(observable: Observable, threshold: float) -> int | None:
    """The theorem's selector: smallest residual among candidates at or past ``threshold``."""
    forget_nlls, _, residuals = observable
    past = [a for a, q in enumerate(forget_nlls) if q >= threshold]
    return min(past, key=lambda a: residuals[a], default=None)


def theorem_selector(worlds: Sequence[World]) -> Selector | None:
    """S(X) = smallest residual past g(X), with g read off the class; None if not identifiable."""
    if find_conflict(worlds) is not None:
        return None
    thresholds = {world.observable: world.threshold for world in worlds}

    def choose(observable: Observable) -> int:
        choice = select(observable, thresholds[observable])
        if choice is None:
            raise InputError("no candidate forgot enough in this world: residual soundness fails")
        return choice

    return choose


def counterfactual_selector(gamma: Callable[[tuple[float, ...]], float]) -> Selector:
    """The lemma's selector under counterfactual exchangeability: the threshold is gamma(nu)."""

    def choose(observable: Observable) -> int:
        choice = select(observable, gamma(observable[1]))
        if choice is None:
            raise InputError(
                "no candidate reaches the never-learned level: the reference of the "
                "probes is out of reach, so nothing may be selected"
            )
        return choice

    return choose


def is_consistent(selector: Selector, worlds: Sequence[World], epsilon: float) -> bool:
    """Whether the selector's choice is adequate in every world."""
    return all(selector(world.observable) in world.adequate(epsilon) for world in worlds)


def _look_alikes(worlds: Sequence[World]) -> dict[Observable, list[World]]:
    classes: dict[Observable, list[World]] = {}
    for world in worlds:
        classes.setdefault(world.observable, []).append(world)
    return classes


def _preferred(observable: Observable, choices: frozenset[int]) -> int:
    residuals = observable[2]
    return min(sorted(choices), key=lambda a: residuals[a])


def _smallest_forbidding(members: Sequence[World], epsilon: float) -> tuple[World, ...]:
    for size in range(1, len(members) + 1):
        for group in combinations(members, size):
            if not frozenset.intersection(*(world.adequate(epsilon) for world in group)):
                return group
    raise AssertionError("these worlds do share an adequate candidate")
