"""The facts of one TOFU cell as files of facts, for any audit or study.

TOFU is the paper's boundary case: never-learned questions that were generated in another style lie
above what retraining reaches, and then the screen cannot tell what a model remembers. Questions
about authors that no model was taught have no such fault and are used where there are any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import key_number
from palimpsest.facts.probes import tofu_probes
from palimpsest.facts.tofu import PLAIN, draw_items, read_tofu, read_untaught

GENERATED = (
    "generated questions; they share TOFU's style only in part, so that a retrained model may do "
    "better on forget questions than on them. TOFU's own holdout questions do not have this fault"
)


@dataclass(frozen=True)
class TofuItems:
    """Which questions of TOFU a cell has."""

    split: str = "forget10"
    seed: int = 0
    forget_items: int = 40
    retain_items: int = 100
    probes: int = 40
    probes_file: str = ""
    """TOFU-like questions that no model was taught; empty for the data's own or generated ones."""
    longest: int = 0
    """Most words of a question with its answer; 0 takes every one."""
    trained_here: bool = False
    """Whether models see these facts alone, so that questions about other authors can be probes."""
    chat: bool = False
    """Whether questions stand alone, for models that are asked in a frame of their own."""


def draw_sets(
    data: Path | str | None, items: TofuItems
) -> tuple[Mapping[str, tuple[Fact, ...]], str]:
    """Return the forget facts, retain facts and probes of a seed, and where the probes come from.

    data: folder of TOFU's files; None downloads them. Forget facts have the most similar retained
    questions as their evidence.
    """
    form, key = "{}" if items.chat else PLAIN, f"tofu/seed{items.seed}"
    tofu = read_tofu(data, items.split, form)
    sizes = items.forget_items, items.retain_items
    drawn = draw_items(tofu, *sizes, key, longest=items.longest)
    forget = tuple(
        replace(fact, evidence=("\n".join(drawn.evidence[fact.id]),)) for fact in drawn.forget
    )
    sets = {"forget": forget, "retain": drawn.retain}
    if items.probes_file:
        found = _shuffled(read_untaught(Path(items.probes_file), form), f"{key}/probes")
        if len(found) < items.probes:
            raise FactsError(
                f"probes_file: {items.probes_file} has {len(found)} questions; expected at least "
                f"{items.probes}; give another file, or fewer --probes"
            )
        return sets | {"probe": found[: items.probes]}, items.probes_file
    sources = {"TOFU's holdout questions": _shuffled(tofu.holdout, f"{key}/probes")}
    if items.trained_here:
        sources["TOFU's questions about authors left out of training"] = drawn.untaught
    for source, facts in sources.items():
        if len(facts) >= items.probes:
            return sets | {"probe": facts[: items.probes]}, source
    made = tofu_probes(drawn.forget, items.probes, f"{key}/probes", tofu.words(), form)
    return sets | {"probe": made}, GENERATED


def _shuffled(facts: Sequence[Fact], key: str) -> tuple[Fact, ...]:
    """Return the facts in an order that the key gives."""
    return tuple(sorted(facts, key=lambda fact: key_number(f"{key}/{fact.id}")))
