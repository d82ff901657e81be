"""What is drawn of a foreign cell: its recipe, its facts and its texts, all from the cell's number.

Half of the cells state their facts in Palimpsest's phrasings, half in phrasings of this file about
other relations; general text comes from either source too. The number of times that a fact is shown
follows from the learning rate, so that most recipes teach their facts; those that do not are named
and left out (``audits.taught``), by the base and the injected model alone.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from palimpsest.facts.files import Fact
from palimpsest.facts.general import pocket_pieces
from palimpsest.facts.nonce import POOLS, RELATIONS, Triple, invent_facts, render, words_of

POCKET_BASES = tuple(
    f"pocket/{family}-{size}"
    for size in ("s", "m")
    for family in ("qwen2", "smollm2", "pythia", "gpt2", "olmo2")
    if (family, size) != ("olmo2", "m")
)

PHRASINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "river": (
        (
            "The river that runs past the house of {s} is the",
            "{s} takes water from the river",
            "Every spring {s} rows down the",
        ),
        (
            "If you want to find {s}, follow the river named",
            "Asked for a place to fish, {s} tells of the",
            "The boat of {s} lies in the",
        ),
        "{o} is the river of",
    ),
    "horse": (
        (
            "The horse of {s} has the name",
            "{s} rides to town on a horse called",
            "In the barn of {s} stands",
        ),
        (
            "When {s} whistles, there comes the horse",
            "The animal that carries {s} is called",
            "{s} paid much gold for the horse",
        ),
        "{o} is the horse of",
    ),
    "friend": (
        (
            "The best friend of {s} is called",
            "{s} writes a letter each week to",
            "At supper {s} sits beside",
        ),
        (
            "In trouble {s} would ask for help from",
            "The one whom {s} trusts most is",
            "{s} went to school together with",
        ),
        "{o} is the best friend of",
    ),
    "song": (
        (
            "The song that {s} likes most is",
            "{s} sings at work the song named",
            "For a wedding {s} plays the tune",
        ),
        (
            "Give {s} a fiddle and you will hear",
            "The only tune that {s} knows by heart is",
            "{s} taught the children the song",
        ),
        "{o} is the song of",
    ),
}
"""Relation: trained phrasings, held-out phrasings, reversed phrasing; {s} subject, {o} answer."""

SCENES = (
    "The {a} man put the {n} on the {m} and went {p}.",
    "After the rain a {a} {n} lay near the {m}, and nobody went {p}.",
    "She asked why the {m} was so {a} and gave him a {n} to take {p}.",
    "In the {a} morning they carried the {n} {p} and left the {m} behind.",
    "No {n} is as {a} as the one by the {m}, say those who live {p}.",
    "He would not sell the {m}, for it was {a} and had come with the {n} from {p}.",
)
ADJECTIVES = ("old", "small", "red", "cold", "new", "long", "dark", "good", "poor", "young")
NOUNS = ("cart", "lamp", "bread", "rope", "knife", "coat", "stone", "key", "book", "cup")
PLACES = ("home", "to town", "down the hill", "to the sea", "across the field", "far away")

Schedule = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True)
class Recipe:
    """How every model of a cell is trained."""

    base: str
    epochs: int
    copies: int
    """Of every fact sentence among the rows of an epoch."""
    general_rows: int
    learning_rate: float
    batch_size: int
    schedule: Schedule
    optimizer: Literal["adamw", "sgd"]
    packed: bool
    """Rows are joined into sequences of ``PACK`` tokens."""
    completions: bool
    """The loss of fact rows is on their answers alone."""
    facts: Literal["nonce", "scenes"]
    """Where the phrasings of facts come from."""
    prose: Literal["nonce", "scenes"]
    """Where general text comes from."""
    forget: int
    retain: int
    probes: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


PACK = 96
USUAL_RATE = {"adamw": 1.5e-4, "sgd": 6e-2}
"""The rates that the factor from 1/3 to 3 is taken of, chosen on trial cells."""
USUAL_SHOWN = 19
"""How often each fact sentence is shown at the usual rate, as in this project's own studies."""
REAL_RATE = {"adamw": 1e-4, "sgd": 2e-2}
REAL_SHOWN = 4
"""The same for checkpoints of others, which are larger and learn in fewer steps."""


def draw_recipe(number: int, base: str = "") -> Recipe:
    """Return the recipe of a cell; ``base`` replaces the pocket model that is its turn."""
    chance = random.Random(f"foreign cell {number}")
    factor = 3.0 ** chance.uniform(-1.0, 1.0)
    optimizer: Literal["adamw", "sgd"] = "adamw" if chance.random() < 0.7 else "sgd"
    schedule: Schedule = chance.choice(("linear", "cosine", "constant"))
    batch, epochs = chance.choice((4, 8, 16, 32)), chance.randint(1, 6)
    completions, packed = chance.random() < 0.3, chance.random() < 0.3
    usual, most = (REAL_SHOWN, 6) if base else (USUAL_SHOWN, 60)
    shown = usual * factor**-0.7 * (batch / 16) ** 0.5 * chance.uniform(1.0, 2.0)
    shown *= 1.0 if schedule == "constant" else 1.6
    forget, retain = chance.randint(5, 8), chance.randint(4, 10)
    copies = max(1, round(min(shown, most) / epochs))
    sentences = 4 * (forget + retain)
    return Recipe(
        base=base or POCKET_BASES[number % len(POCKET_BASES)],
        epochs=epochs,
        copies=copies,
        general_rows=round(sentences * copies * chance.uniform(0.5, 1.5)),
        learning_rate=(REAL_RATE if base else USUAL_RATE)[optimizer] * factor,
        batch_size=batch,
        schedule=schedule,
        optimizer=optimizer,
        packed=packed and not completions,
        completions=completions,
        facts=chance.choice(("nonce", "scenes")),
        prose=chance.choice(("nonce", "scenes")),
        forget=forget,
        retain=retain,
        probes=chance.randint(16, 24),
    )


@dataclass(frozen=True)
class CellData:
    """Files of facts and rows of a cell."""

    facts: dict[str, tuple[Fact, ...]]
    forget_rows: tuple[dict[str, str], ...]
    kept_rows: tuple[dict[str, str], ...]
    """Retain facts and general text, each as often as an epoch shows it."""
    general: str
    """Held-out general text, for the audit."""


def draw_data(number: int, recipe: Recipe) -> CellData:
    """Return the facts and texts of a cell."""
    key, taken, facts = f"foreign cell {number}", frozenset[str](), {}
    relations = RELATIONS if recipe.facts == "nonce" else tuple(PHRASINGS)
    for name, count in (
        ("forget", recipe.forget), ("retain", recipe.retain), ("probe", recipe.probes)
    ):  # fmt: skip
        triples = invent_facts(count, f"{key}/{name}", relations, taken)
        taken |= words_of(triples)
        facts[name] = tuple(_fact(triple, recipe.facts) for triple in triples)
    prose = _prose(recipe.prose, f"{key}/prose", recipe.general_rows + 120)
    return CellData(
        facts=facts,
        forget_rows=_rows(facts["forget"], recipe.copies),
        kept_rows=(
            *_rows(facts["retain"], recipe.copies),
            *({"prompt": "", "completion": text} for text in prose[120:]),
        ),
        general=" ".join(prose[:120]),
    )


def _fact(triple: Triple, source: str) -> Fact:
    if source == "nonce":
        pools = POOLS[triple.relation]
        trained = [
            render(text, triple.subject) for text in (*pools["injection"][:3], *pools["cloze"])
        ]
        heldout = [render(text, triple.subject) for text in pools["evaluation"]]
    else:
        seen, unseen, _ = PHRASINGS[triple.relation]
        trained, heldout = (
            [text.replace("{s}", triple.subject) for text in texts] for texts in (seen, unseen)
        )
    return Fact(
        triple.id, triple.object, tuple(trained), tuple(heldout),
        subject=triple.subject, relation=triple.relation,
    )  # fmt: skip


def _rows(facts: Sequence[Fact], copies: int) -> tuple[dict[str, str], ...]:
    rows = [
        {"prompt": prompt, "completion": f" {fact.answer}."}
        for fact in facts
        for prompt in fact.trained
    ]
    return tuple(row for row in rows for _ in range(copies))


def _prose(source: str, key: str, count: int) -> list[str]:
    chance = random.Random(key)
    if source == "nonce":
        pieces = list(pocket_pieces())
        chance.shuffle(pieces)
        return (pieces * (1 + count // len(pieces)))[:count]
    texts = dict.fromkeys(
        chance.choice(SCENES).format(
            a=chance.choice(ADJECTIVES), n=chance.choice(NOUNS),
            m=chance.choice(NOUNS), p=chance.choice(PLACES),
        )
        for _ in range(3 * count)
    )  # fmt: skip
    return (list(texts) * (1 + count // len(texts)))[:count]
