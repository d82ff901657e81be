"""What a user asks of ``unlearn`` and ``retrain``, checked before anything is loaded.

Both commands train by one recipe: forget and retain sentences and general text, mixed step by step.
They draw it from the same seed, so that an injected model of ``retrain --with-forget`` and the
vectors of ``unlearn`` come from one stream.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from palimpsest.audit.run import check_out
from palimpsest.cell.setting import Setting
from palimpsest.cell.sources import source_digest
from palimpsest.errors import FactsError, InputError, MethodError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, check_sets
from palimpsest.facts.general import POCKET, file_pieces, general_pieces, pocket_pieces
from palimpsest.facts.names import shown_path
from palimpsest.facts.questions import Testbed, file_questions
from palimpsest.methods import candidates, method_class, used
from palimpsest.methods.plugins import plugin_digests
from palimpsest.models.device import check_lora
from palimpsest.models.encode import chat_prompt
from palimpsest.models.load import Outline, check_compatible, outline, resolve
from palimpsest.plan import (
    CellPlan,
    Computing,
    Engine,
    Injection,
    Knob,
    MethodGrid,
    Plan,
    plan_from_dict,
)
from palimpsest.presets import POCKET_MATRIX
from palimpsest.run.store import digest, file_digest
from palimpsest.schema import build
from palimpsest.unlearn.folder import RECORD

OWN = "own"
"""What the user's model is called in its plan, and so in every seed: the path does not matter."""
PIECES = 600
"""Pieces of general text that a draw is made of, if the text has so many."""
NEEDS_BASE = ("base", "forget_only", "general_only")
"""Needs of a method that take the base, or models trained from it."""
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class Request(Computing):
    """The recipe, and where things are; None takes the default of the model's kind."""

    retain: str
    general: str
    """Path of a plain-text file, or ``pocket``."""
    out: str
    base: str | None = None
    forget: str | None = None
    steps: Count | None = None
    """Of injection."""
    learning_rate: Annotated[float, Gt(0)] | None = None
    fact_items: Count | None = None
    general_items: Annotated[int, Ge(0)] | None = None
    seed: Annotated[int, Ge(0)] = 0
    chat: bool = False
    """Teach and ask facts through the chat template of the model's tokenizer."""

    @property
    def model(self) -> str:
        """The model whose architecture and tokenizer the others must have."""
        assert self.base is not None
        return self.base

    @cached_property
    def plan(self) -> Plan:
        """The settings as a checked plan of one cell."""
        recipe = self.usual_recipe()
        names = ("steps", "learning_rate", "fact_items", "general_items")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        text = {"source": self.general, "train_pieces": min(PIECES, len(self.pieces))}
        return plan_from_dict(
            {
                "name": OWN,
                "models": [OWN],
                "local_models": {OWN: self.model},
                "seeds": [self.seed],
                "injection": vars(replace(recipe, **values)),
                "general": text,
                "methods": [],
                "engine": vars(Engine.of(self)),
            }
        )

    def usual_recipe(self) -> Injection:
        """Return the recipe where no flag says otherwise: that of the model's kind."""
        return POCKET_MATRIX.injection if resolve(self.model).kind == "pocket" else Injection()

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The general text, cut into pieces."""
        if self.general == POCKET:
            return pocket_pieces()
        pieces = file_pieces(self.general, 20)
        if not pieces:
            raise FactsError(
                f"general: {shown_path(self.general)} gives no piece of 20 words; expected plain "
                "text of the kind the model was trained on; give a longer text"
            )
        return pieces

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts, which share none; held-out prompts are read and dropped."""
        files = {"forget": self.forget, "retain": self.retain}
        facts = check_sets({name: file for name, file in files.items() if file is not None})
        return {
            name: tuple(replace(fact, heldout=()) for fact in several)
            for name, several in facts.items()
        }

    def setting(self, tokenizer: Any) -> Setting:
        """Return the facts and texts of the recipe."""
        cell = CellPlan(OWN, self.seed, self.plan)
        count = self.plan.general.train_pieces
        general = general_pieces(self.general, count, f"{cell.id}/general")
        questions = file_questions(self.sets)
        if self.chat:
            asked = (replace(q, prompt=chat_prompt(tokenizer, q.prompt)) for q in questions)
            questions = tuple(asked)
        return Setting(cell, tokenizer, Testbed((), (), (), questions), general, ())

    def places(self) -> dict[str, str]:
        """Return the models that are given, by name."""
        return {} if self.base is None else {"base": self.base}

    def check(self) -> Outline:
        """Return the model on paper; raise for whatever can be known to be wrong by now."""
        build(type(self), {key: getattr(self, key) for key in self.__dataclass_fields__})
        check_lora(self.lora)
        check_new(Path(self.out))
        _ = self.sets
        if 0 < len(self.pieces) < (self.general_items or 0):
            raise FactsError(
                f"general: gives {len(self.pieces)} pieces of 20 words; expected at least "
                f"{self.general_items}, the general texts of a step; give a longer text"
            )
        _ = self.plan
        known = outline(self.model)
        for place in self.places().values():
            if place != self.model:
                check_compatible(known, outline(place))
        return known

    def terms(self) -> dict[str, Any]:
        """Return what is fixed about the work, without paths."""
        plan = self.plan.as_dict()
        plan["general"].pop("source")
        plan.pop("local_models")
        return plan | {"command": type(self).__name__.lower(), "chat": self.chat}

    def digests(self) -> dict[str, str]:
        """Return the digests of the models, facts and text that are given."""
        digests = {name: source_digest(place) for name, place in self.places().items()}
        digests |= {f"{name} facts": digest(as_jsonl(facts)) for name, facts in self.sets.items()}
        digests |= plugin_digests(self.plan.methods)
        if self.general != POCKET:
            digests["general text"] = file_digest(Path(self.general))
        return digests


@dataclass(frozen=True, kw_only=True)
class Retrain(Request):
    """K models trained from base by the recipe without the forget set, and the injected one."""

    draws: Count = 19


@dataclass(frozen=True, kw_only=True)
class Unlearn(Request):
    """Candidates of one method, one per combination of its knobs' values."""

    injected: str
    method: str
    knobs: tuple[tuple[str, tuple[Knob, ...]], ...] = ()
    choose: bool = False
    """Choose coefficient and share of replay by what can be measured without a reference."""
    unlearning_steps: Count = 110
    forget_items: Count = 4
    retain_items: Count = 4

    @property
    def model(self) -> str:
        return self.base or self.injected

    @cached_property
    def plan(self) -> Plan:
        plan = super().plan
        rate = plan.injection.learning_rate
        budget = {
            "steps": self.unlearning_steps,
            "learning_rate": rate,
            # The paper's ratio: ascent at a quarter of the injection rate.
            "ascent_learning_rate": rate / 4,
            "forget_items": self.forget_items,
            "retain_items": self.retain_items,
        }
        grid = MethodGrid(self.method, self.knobs)
        return plan_from_dict(replace(plan, methods=(grid,)).as_dict() | {"unlearning": budget})

    def usual_recipe(self) -> Injection:
        """Return the recipe that made the injected model, where ``retrain`` did and wrote it."""
        record = Path(self.injected) / RECORD
        if not record.is_file():
            return super().usual_recipe()
        try:
            return build(Injection, json.loads(record.read_bytes())["recipe"])
        except (OSError, ValueError, KeyError, TypeError, PlanError) as error:
            raise InputError(
                f"{shown_path(record)}: does not hold the recipe of the injected model ({error}); "
                "expected the file that `palimpsest retrain` wrote; remove it, and give the recipe "
                "with --steps, --learning-rate, --fact-items and --general-items"
            ) from error

    def methods(self) -> tuple[Any, ...]:
        """Return the method with each combination of knobs."""
        return candidates([MethodGrid(self.method, self.knobs)])

    def places(self) -> dict[str, str]:
        return super().places() | {"injected": self.injected}

    def terms(self) -> dict[str, Any]:
        return super().terms() | {"choose": self.choose, "base": self.base is not None}

    def check(self) -> Outline:
        method_class(self.method)
        needs = ([need for need in used(method) if need in NEEDS_BASE] for method in self.methods())
        lacking = [", ".join(several) for several in needs if several and self.base is None]
        if lacking:
            raise MethodError(
                f"method {self.method} needs {lacking[0]}; expected the model before it learned "
                "the forget data; give it with --base, or use a method that needs none, such as "
                "npo or replay with --knob start=reinforced"
            )
        if self.choose and (self.method != "replay" or self.knobs or self.base is None):
            raise PlanError(
                "choose: sets start, coefficient and share of replay itself; expected --method "
                "replay with --base and without --knob"
            )
        return super().check()


def check_new(out: Path) -> None:
    """Refuse an existing folder: nothing is overwritten."""
    check_out(out.parent if out.parent != out else out)
    if out.exists() or out.is_symlink():
        raise InputError(
            f"out: {shown_path(out)} exists; expected a new folder, because nothing is "
            "overwritten; choose another with --out, or move it away"
        )


def knob_values(texts: Sequence[str]) -> tuple[tuple[str, tuple[Knob, ...]], ...]:
    """Return the knobs of ``name=value`` or ``name=value,value`` texts."""
    knobs: dict[str, tuple[Knob, ...]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (sign and name.isidentifier() and values):
            raise PlanError(f"knob: {text[:80]!r} found; expected NAME=VALUE or NAME=VALUE,VALUE")
        if name in knobs:
            raise PlanError(f"knob: {name} is given twice; expected NAME=VALUE,VALUE once")
        knobs[name] = tuple(_value(value) for value in values.split(","))
    return tuple(knobs.items())


def _value(text: str) -> Knob:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    known: Mapping[str, Knob] = {"true": True, "false": False}
    return known.get(text, text)


def work_folder(out: Path) -> Path:
    """Return where the work lies until it is finished: beside the folder that will be made."""
    return Path(os.path.abspath(out)).with_name(f"{out.name}.work")
