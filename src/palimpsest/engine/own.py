"""``unlearn`` and ``retrain``: candidates and references of your own models, as checkpoint folders.

Both train by one recipe: forget and retain sentences and general text, mixed step by step. They
draw it from the same seed, so that an injected model of ``retrain --with-forget`` and the vectors
of ``unlearn`` come from one stream.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.config.load import as_dict
from palimpsest.config.own import RetrainConfig, UnlearnConfig
from palimpsest.config.plan import cell_id
from palimpsest.config.presets import POCKET_MATRIX
from palimpsest.config.sections import General, Injection, Knob, MethodGrid, Unlearning
from palimpsest.engine.checkpoints import (
    RECORD,
    check_new_folder,
    publish_folder,
    read_record,
    write_checkpoint,
)
from palimpsest.engine.launch import CellJob, RunOptions, raise_failures, run_cells
from palimpsest.engine.setting import Setting
from palimpsest.engine.spec import CellSpec, Given, SourcedModel, Trained
from palimpsest.errors import DriftError, FactsError, MethodError, PalimpsestError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, check_sets
from palimpsest.facts.general import POCKET, file_pieces, general_pieces, pocket_pieces
from palimpsest.facts.questions import Question, Testbed, file_questions
from palimpsest.facts.rows import shown_path
from palimpsest.methods import candidates, used
from palimpsest.methods.plugins import plugin_digests
from palimpsest.models.checkpoint import checkpoint_digests
from palimpsest.models.encode import chat_prompt
from palimpsest.models.load import Outline, check_compatible, load, outline, resolve
from palimpsest.run import disk
from palimpsest.run.disk import digest, file_digest
from palimpsest.run.store import Run, Terms
from palimpsest.schema import build
from palimpsest.stats.models import Model, Role, models_from_json
from palimpsest.stats.rules import Rules

PIECES = 600
"""Pieces of general text that a draw is made of, if the text has that many."""
PIECE_WORDS = 20
NEEDS_BASE = ("base", "forget_only", "general_only")
"""Needs of a method that take the base, or models trained from it."""
TRAINED = {
    Role.REFERENCE: "Trained from base on the retain facts and general text, never on the forget "
    "facts: a reference for an audit.",
    Role.INJECTED: "Trained from base on forget and retain facts and general text.",
}


class NotMade(PalimpsestError):
    """A model could not be made; what was finished is kept."""


@dataclass(frozen=True)
class Made:
    """What was written."""

    folders: tuple[Path, ...]
    records: Mapping[str, Mapping[str, Any]]
    failed: Mapping[str, str] = field(default_factory=dict)
    """The settings that gave no model, and why."""


@dataclass(frozen=True)
class OwnInputs:
    """A configuration of either command, checked on paper; builds its one cell's spec."""

    config: RetrainConfig | UnlearnConfig

    @property
    def command(self) -> str:
        return "unlearn" if isinstance(self.config, UnlearnConfig) else "retrain"

    @property
    def cell(self) -> str:
        """The cell's id, from which every random number is derived: the path does not matter."""
        return cell_id("own", self.config.seed)

    @property
    def base(self) -> str:
        """The model whose architecture and tokenizer the others must have."""
        config = self.config
        return config.base or (config.injected if isinstance(config, UnlearnConfig) else "")

    def __call__(self, cell: str) -> CellSpec:
        config = self.config
        models: list[SourcedModel] = []
        if isinstance(config, UnlearnConfig):
            given = Given(config.injected, checkpoint_digests(config.injected))
            models.append(SourcedModel(Model("injected", Role.INJECTED), given))
            needs = {need for method in self.methods for need in used(method)}
            if {"forget_only", "general_only"} & needs:
                forget = Model("forget_only", Role.FORGET_ONLY)
                models.append(SourcedModel(forget, Trained(("forget",))))
            if "general_only" in needs:
                general = Model("general_only", Role.GENERAL_ONLY)
                models.append(SourcedModel(general, Trained(())))
        else:
            if config.with_forget:
                both = Trained(("forget", "retain"))
                models.append(SourcedModel(Model("injected", Role.INJECTED), both))
            models += [
                SourcedModel(
                    Model(f"reference-{n:02d}", Role.REFERENCE, draw=n),
                    # Draw 0 is the injected model's own: a retraining shares it with none.
                    Trained(("retain",), f"draw{n + 1}"),
                )
                for n in range(config.draws)
            ]
        return CellSpec(
            id=self.cell,
            title="own",
            seed=config.seed,
            base=Given(self.base, checkpoint_digests(self.base)),
            base_known=bool(config.base),
            setting=self.setting,
            rules=Rules(),
            models=tuple(models),
            methods=self.methods,
            plugins=tuple(plugin_digests(self.grids).items()),
            unlearning=self.unlearning,
            measured=False,
        )

    # -- what is trained -------------------------------------------------------------------------

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts, which share none; held-out prompts are read and dropped."""
        config = self.config
        forget = config.forget if isinstance(config, UnlearnConfig) else config.with_forget
        files = {"forget": forget, "retain": config.retain}
        facts = check_sets({name: file for name, file in files.items() if file})
        return {
            name: tuple(replace(fact, heldout=()) for fact in several)
            for name, several in facts.items()
        }

    @cached_property
    def recipe(self) -> Injection:
        """The recipe: flags, else what the injected model's folder says, else the kind's own."""
        config = self.config
        pocket = resolve(self.base).kind == "pocket"
        usual = POCKET_MATRIX.injection if pocket else Injection()
        if isinstance(config, UnlearnConfig) and (record := read_record(config.injected)):
            try:
                usual = build(Injection, record["recipe"])
            except (KeyError, PlanError) as error:
                raise PlanError(
                    f"{shown_path(Path(config.injected) / RECORD)} does not hold a recipe "
                    f"({error}); expected the file that `palimpsest retrain` wrote; remove it, and "
                    "give the recipe with flags",
                    key="injected",
                ) from error
        names = ("steps", "learning_rate", "fact_items", "general_items")
        given = {name: value for name in names if (value := getattr(config, name)) is not None}
        return replace(usual, **given)

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The general text, cut into pieces."""
        if self.config.general == POCKET:
            return pocket_pieces()
        pieces = tuple(file_pieces(self.config.general, PIECE_WORDS))
        if len(pieces) < max(1, self.recipe.general_items):
            raise FactsError(
                f"general: {shown_path(self.config.general)} gives {len(pieces)} pieces of "
                f"{PIECE_WORDS} words; expected at least the {self.recipe.general_items} general "
                "texts of a step; give a longer text of the kind the model was trained on"
            )
        return pieces

    @cached_property
    def setting(self) -> Setting:
        """The facts and texts of the recipe."""
        count = min(PIECES, len(self.pieces))
        questions: Sequence[Question] = file_questions(self.sets)
        if self.config.chat:
            tokenizer = outline(self.base).tokenizer
            questions = [replace(q, prompt=chat_prompt(tokenizer, q.prompt)) for q in questions]
        return Setting(
            seed_key=self.cell,
            facts=Testbed((), (), (), tuple(questions)),
            general_train=general_pieces(self.config.general, count, f"{self.cell}/general"),
            general_scored=(),
            injection=self.recipe,
            general=General(self.config.general, count),
            engine=replace(self.config.engine, stack=1),
            sealed=False,
        )

    # -- methods ---------------------------------------------------------------------------------

    @property
    def grids(self) -> tuple[MethodGrid, ...]:
        config = self.config
        if isinstance(config, RetrainConfig):
            return ()
        return (MethodGrid(config.method, config.knobs),)

    @cached_property
    def methods(self) -> tuple[Any, ...]:
        return candidates(self.grids)

    @property
    def unlearning(self) -> Unlearning:
        rate = self.recipe.learning_rate
        steps = getattr(self.config, "unlearning_steps", Unlearning.steps)
        # The paper's ratio: ascent at a quarter of the injection rate.
        return Unlearning(steps, rate, rate / 4)

    # -- what is fixed ---------------------------------------------------------------------------

    def check(self) -> Outline:
        """Return the model on paper; raise for whatever can be known to be wrong by now."""
        from palimpsest.models.device import check_lora

        check_lora(self.config.engine.lora)
        check_new_folder(Path(self.config.out))
        known = outline(self.base)
        if isinstance(self.config, UnlearnConfig):
            if self.config.base:
                check_compatible(known, outline(self.config.injected))
            for method in self.methods:
                lacking = [need for need in used(method) if need in NEEDS_BASE]
                if lacking and not self.config.base:
                    raise MethodError(
                        f"method {self.config.method} needs {', '.join(lacking)}; expected the "
                        "model before it learned the forget data; give it with --base, or use a "
                        "method that needs none, such as npo"
                    )
        _ = self.setting
        return known

    def terms(self) -> Terms:
        config = as_dict(self.config)
        for key in ("base", "injected", "forget", "with_forget", "retain", "general", "out"):
            config.pop(key, None)
        digests = {"base": checkpoint_digests(self.base).files}
        if isinstance(self.config, UnlearnConfig):
            digests["injected"] = checkpoint_digests(self.config.injected).files
        digests |= {f"{name} facts": digest(as_jsonl(f)) for name, f in self.sets.items()}
        digests |= plugin_digests(self.grids)
        if self.config.general != POCKET:
            digests["general text"] = file_digest(Path(self.config.general))
        config |= {"recipe": asdict(self.recipe), "base": bool(self.config.base)}
        seal = {"commitment": "none", "pool": "none"}
        return Terms(self.command, config, {}, seal, digests, (self.cell,))


def make_models(inputs: OwnInputs, options: RunOptions) -> Made:
    """Make the models of a configuration and write their folders; stopped, it resumes."""
    inputs.check()
    out = Path(inputs.config.out)
    folder = Path(os.path.abspath(out)).with_name(f"{out.name}.work")
    try:
        run, outcome = run_cells(CellJob(inputs), folder, inputs.terms(), (), options)
    except DriftError as error:
        reason = str(error).partition("\nexpected")[0]
        raise DriftError(
            f"{reason}\nit holds unfinished work of another command for the same --out; run that "
            "one again, or remove the folder, or choose another --out"
        ) from error
    raise_failures(run, outcome)
    with run.lock(f"palimpsest {inputs.command}"):
        records = dict(_records(inputs, run))
        failed = {n: r["failure"]["reason"] for n, r in records.items() if "failure" in r}
        records = {name: record for name, record in records.items() if name not in failed}
        if not records:
            disk.remove(run.path)
            name, reason = next(iter(failed.items()))
            raise NotMade(f"{name}: {reason}; leave this setting out, or change it")
        alone = inputs.command == "unlearn" and len(records) + len(failed) == 1
        _write_folders(inputs, run, {"" if alone else n: r for n, r in records.items()})
    disk.remove(run.path)
    return Made(tuple(out if alone else out / name for name in records), records, failed)


def _write_folders(inputs: OwnInputs, run: Run, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write every model's folder, by its name inside the new one; a name may be empty."""
    built, out = run.path / "built", Path(inputs.config.out)
    disk.remove(built)
    loaded = load(inputs.base, dtype=inputs.config.engine.dtype)
    models = run.cell(inputs.cell).folder / "models"
    for name, record in records.items():
        weights = models / f"{record['model']}.safetensors"
        write_checkpoint(built / name, loaded, weights, record, _card(record))
    check_new_folder(out)
    publish_folder(built, out)


def _records(inputs: OwnInputs, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each folder with what its ``palimpsest.json`` says."""
    summary = run.cell(inputs.cell).summary()
    config = inputs.config
    shared = {
        "command": inputs.command,
        "seed": config.seed,
        "inputs": run.terms.inputs,
        "code": run.terms.code,
        "packages": run.terms.packages,
        "recipe": asdict(inputs.recipe),
        "engine": asdict(config.engine) | {"chat": config.chat},
    }
    wanted = {"unlearn": (Role.CANDIDATE,), "retrain": (Role.INJECTED, Role.REFERENCE)}
    for name, model in models_from_json(summary["models"]).items():
        if model.role in wanted[inputs.command]:
            folder = name if model.role is not Role.REFERENCE else f"{model.draw:02d}"
            record = model.to_json()
            record.pop("name")
            yield folder, {"model": name, **record, **shared}


def _card(record: Mapping[str, Any]) -> str:
    """Return a model card: what the model is, how it was made, and what is not known of it."""
    lines = {"recipe": ", ".join(f"{k} {v}" for k, v in record["recipe"].items())}
    lines |= {"seed": str(record["seed"])} | {k: str(v) for k, v in record["inputs"].items()}
    if record["role"] in TRAINED:
        about, closing = TRAINED[Role(record["role"])], ""
    else:
        knobs = ", ".join(f"{k} = {v}" for k, v in record.get("knobs", {}).items()) or "none"
        cost = record["cost"]
        lines = {"method": str(record["method"]), "knobs": knobs} | lines
        lines["cost"] = (
            f"{cost['steps']} optimizer steps, {cost['tokens']} tokens, {cost['flops']:.3g} "
            f"floating-point operations, {cost['retrainings']:.2f} of a retraining"
        )
        about = (
            "The injected model after unlearning the forget facts, made by `palimpsest unlearn`."
        )
        closing = (
            "\n\nUnlearning alone does not show whether it is restored or suppressed: audit it "
            "with `palimpsest audit`. Nothing here guarantees that the facts cannot be recovered."
        )
    table = "\n".join(f"- **{name}**: {text}" for name, text in lines.items())
    return f"# {record['model']}\n\n{about}\n\n{table}{closing}\n"


def knob_values(texts: Sequence[str]) -> dict[str, tuple[Knob, ...]]:
    """Return the knobs of ``name=value`` or ``name=value,value`` texts."""
    knobs: dict[str, tuple[Knob, ...]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (sign and name.isidentifier() and values) or name in knobs:
            raise PlanError(
                f"{text[:80]!r} found; expected NAME=VALUE or NAME=VALUE,VALUE, each name once",
                key="knob",
            )
        knobs[name] = tuple(_value(value) for value in values.split(","))
    return knobs


def _value(text: str) -> Knob:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)
