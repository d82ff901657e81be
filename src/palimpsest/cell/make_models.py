"""``unlearn`` and ``retrain``: candidates and references of your own models, as checkpoint folders.

Both train by one recipe: a file of training examples, or forget and retain sentences and general
text mixed step by step. They draw it from the same seed, so that an injected model of ``retrain
--with-forget`` and the vectors of ``unlearn`` come from one stream. References may also come from a
user's own trainer.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from palimpsest.cell.checkpoints import (
    RECORD,
    check_new_folder,
    publish_folder,
    read_record,
    write_checkpoint,
)
from palimpsest.cell.estimate import Estimate
from palimpsest.cell.frame import Frame, check_lengths, find_frame, render_examples
from palimpsest.cell.launch import RunOptions, Task, launch
from palimpsest.cell.plan import (
    CellPlan,
    Commanded,
    Given,
    Source,
    Trained,
    sourced,
    trained_source,
)
from palimpsest.cell.planned import listed_methods, planned_cell
from palimpsest.cell.texts import TAUGHT, CellTexts, TrainingExamples
from palimpsest.cell.work import LOG, NotMade
from palimpsest.config.commands import ExampleRecipe, RetrainConfig, UnlearnConfig
from palimpsest.config.load import as_dict
from palimpsest.config.plan import cell_id
from palimpsest.config.presets import POCKET_MATRIX
from palimpsest.config.sections import General, Injection, MethodGrid, Unlearning
from palimpsest.facts.examples import ExampleFile, read_examples
from palimpsest.facts.files import Fact, as_jsonl, check_sets
from palimpsest.facts.general import (
    POCKET,
    file_pieces,
    general_pieces,
    pocket_pieces,
    text_digest,
)
from palimpsest.facts.questions import Question, Testbed, file_questions
from palimpsest.methods import candidates, plugin_digests
from palimpsest.models.checkpoint import (
    Digests,
    Outline,
    check_compatible,
    checkpoint_digests,
    load,
    outline,
)
from palimpsest.models.device import check_lora
from palimpsest.models.sources import Kind, find_kind
from palimpsest.run.files import digest, remove, write_bytes
from palimpsest.run.store import Roster, Run, Terms
from palimpsest.schema import build
from palimpsest.stats.models import Model, Role, models_from_json

PIECES = 600
"""Pieces of general text that a draw is made of, if the text has that many."""
PIECE_WORDS = 20
PLACES = (*("base", "injected", "train", "forget_rows", "forget", "retain", "general", "out"),)
"""Paths: what lies there is fixed by its digest."""
TRAINED = (Role.REFERENCE, Role.INJECTED)


@dataclass(frozen=True)
class Made:
    """What was written."""

    folders: tuple[Path, ...]
    records: Mapping[str, Mapping[str, Any]] = field(repr=False)
    failed: Mapping[str, str] = field(default_factory=dict)
    """The settings that gave no model, and why."""


@dataclass(frozen=True)
class MakeTask(Task):
    """References or candidates to be made with a user's own models, by either command."""

    config: RetrainConfig | UnlearnConfig

    carried: ClassVar[tuple[str, ...]] = ("fixed", "digests", "texts")

    @property
    def kind(self) -> str:
        """The command."""
        return "unlearn" if isinstance(self.config, UnlearnConfig) else "retrain"

    @property
    def folder(self) -> Path:
        """The folder of unfinished work, beside the one to write."""
        out = Path(os.path.abspath(self.config.out))
        return out.with_name(f"{out.name}.work")

    @property
    def cell_id(self) -> str:
        """The cell's id, from which every random number is derived: the path does not matter."""
        return cell_id("own", self.config.seed)

    @cached_property
    def digests(self) -> dict[str, Digests]:
        """The digests of the models that are given, by what they are."""
        given = {"base": self.config.base}
        if isinstance(self.config, UnlearnConfig):
            given["injected"] = self.config.injected
        return {name: checkpoint_digests(place) for name, place in given.items()}

    def build(self, cell: str) -> CellPlan:
        """Return the plan of the one cell."""
        return sourced(
            planned_cell(*self.fixed, cell),
            self._source,
            base=Given(self.config.base, self.digests["base"]),
            texts=self.texts,
            methods=self.methods,
            plugins=tuple(plugin_digests(self.grids).items()),
            unlearning=self.unlearning,
            measured=False,
        )

    def _source(self, model: Model) -> Source:
        """Return how a model is made.

        Draw 0 is the injected model's own: a retraining shares it with none.
        """
        config, injected = self.config, model.role is Role.INJECTED
        if isinstance(config, UnlearnConfig):
            if injected:
                return Given(config.injected, self.digests["injected"])
            return trained_source(model)
        draw = 0 if model.seed_no is None else model.seed_no + 1
        if config.command:
            data = cast(ExampleFile, self.examples).jsonl(forget=injected)
            return Commanded(config.command, data, config.seed + draw)
        return Trained(TAUGHT if injected else ("retain",), f"draw{draw}")

    # -- what is trained -------------------------------------------------------------------------

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts, which share none; held-out prompts are read and dropped."""
        files = {"forget": self.config.forget, "retain": self.config.retain}
        facts = check_sets({name: file for name, file in files.items() if file})
        return {
            name: tuple(replace(fact, heldout=()) for fact in several)
            for name, several in facts.items()
        }

    @cached_property
    def examples(self) -> ExampleFile | None:
        """The rows that are trained on, where the recipe is a file of them."""
        config = self.config
        return read_examples(config.train, config.forget_rows) if config.train else None

    @cached_property
    def recipe(self) -> Injection | ExampleRecipe:
        """The recipe: flags, else what the injected model's folder says, else the kind's own."""
        config = self.config
        usual: Injection | ExampleRecipe = Injection()
        if self.examples is not None:
            usual = ExampleRecipe()
        elif find_kind(self.config.base) is Kind.POCKET:
            usual = POCKET_MATRIX.injection
        if isinstance(config, UnlearnConfig) and (record := read_record(config.injected)):
            recorded = {k: v for k, v in record.get("recipe", {}).items() if k != "examples"}
            usual = build(type(usual), recorded, f"{Path(config.injected) / RECORD}: recipe")
        given = dict(config.recipe)
        if "epochs" in given:
            given["steps"] = 0
        return build(type(usual), asdict(usual) | given)

    @cached_property
    def frame(self) -> Frame | None:
        """The text around questions and answers, where the settings ask for one."""
        return find_frame(outline(self.config.base).tokenizer, self.config.prompt)

    @cached_property
    def texts(self) -> CellTexts:
        """The facts and texts of the recipe."""
        engine = replace(self.config.engine, stack=1)
        if self.examples is not None:
            return CellTexts(
                seed_key=self.cell_id,
                facts=Testbed((), (), (), ()),
                general_train=(),
                general_scored=(),
                examples=self._training_examples(self.examples),
                engine=engine,
                sealed=False,
            )
        recipe, source = cast(Injection, self.recipe), self.config.general
        pieces = pocket_pieces() if source == POCKET else file_pieces(source, PIECE_WORDS)
        count = max(recipe.general_items, min(PIECES, sum(1 for _ in pieces)))
        questions: Sequence[Question] = file_questions(self.sets)
        if self.frame is not None:
            questions = self.frame.put(questions)
        return CellTexts(
            seed_key=self.cell_id,
            facts=Testbed((), (), (), tuple(questions)),
            general_train=general_pieces(source, count, f"{self.cell_id}/general"),
            general_scored=(),
            injection=recipe,
            general=General(source=source, train_pieces=count),
            engine=engine,
            sealed=False,
        )

    def _training_examples(self, file: ExampleFile) -> TrainingExamples:
        recipe = cast(ExampleRecipe, self.recipe)
        if isinstance(self.config, RetrainConfig) and self.config.command:
            return TrainingExamples((), recipe)  # what rows mean is the trainer's own affair
        known = outline(self.config.base)
        rendered = render_examples(known, file, recipe, self.config.prompt)
        check_lengths(known, rendered.texts)
        return rendered

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

    @property
    def recipe_record(self) -> dict[str, Any]:
        """What is written of the recipe into every folder."""
        if isinstance(self.config, RetrainConfig) and self.config.command:
            assert self.examples is not None
            return {"command": self.config.command, "examples": self.examples.digest}
        rows = {} if self.examples is None else {"examples": self.examples.digest}
        return asdict(self.recipe) | rows

    # -- what is fixed ---------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Raise for whatever can be known to be wrong; return what is worth knowing."""
        check_lora(self.config.engine.lora)
        check_new_folder(Path(self.config.out))
        known = outline(self.config.base)
        if isinstance(self.config, UnlearnConfig):
            check_compatible(known, outline(self.config.injected))
        _ = self.methods, self.texts
        return list(self._remarks(known))

    def _remarks(self, known: Outline) -> Iterator[str]:
        if self.examples is None:
            return
        yield from self.examples.remarks()
        rates = {
            name: value
            for name, value in vars(known.config).items()
            if re.fullmatch(r"\w*(dropout|pdrop)\w*", name) and isinstance(value, float) and value
        }
        if rates and not getattr(self.config, "command", ""):
            named = ", ".join(f"{name} {value:g}" for name, value in rates.items())
            yield f"trained without dropout, which the model's configuration has ({named})"

    def preview(self, estimate: Estimate, workers: int) -> list[str]:
        """Return what would be done and what it would take."""
        taken = estimate.line(workers)
        if isinstance(self.config, RetrainConfig) and self.config.command:
            times = self.config.draws + self.config.with_forget
            disk_space = f"{estimate.disk / 1e9:.1f} GB of disk beside what it writes itself"
            taken = f"your command, {times} times, {workers} at a time; {disk_space}"
        return [f"would write {self.config.out}: {taken}"]

    def fix(self) -> tuple[Terms, Roster]:
        """Return what is fixed, without the paths of files, and the candidates to make."""
        config = as_dict(self.config)
        for key in PLACES:
            config.pop(key, None)
        inputs = {name: digests.files for name, digests in self.digests.items()}
        if self.examples is not None:
            inputs["training examples"] = self.examples.digest
        else:
            inputs |= {f"{name} facts": digest(as_jsonl(f)) for name, f in self.sets.items()}
        plugins = plugin_digests(self.grids)
        inputs |= {f"method {name}": value for name, value in plugins.items()}
        if self.config.general not in ("", POCKET):
            inputs["general text"] = text_digest(self.config.general)
        config["recipe"] = self.recipe_record
        config["prompt"].pop("prompt_file")
        config["template"] = None if self.frame is None else self.frame.text
        seal = {"commitment": "none", "pool": "none"}
        terms = Terms(self.kind, config, {}, seal, inputs, (self.cell_id,))
        return terms, listed_methods(self.methods, plugins)


def make_models(task: MakeTask, options: RunOptions) -> Made:
    """Make the models of a task and write their folders; stopped, it resumes."""
    out, run = Path(task.config.out), launch(task, options)
    with run.lock(f"palimpsest {task.kind}"):
        check_different(task, run)
        records = dict(_records(task, run))
        failed = {n: r["failure"]["reason"] for n, r in records.items() if "failure" in r}
        records = {name: record for name, record in records.items() if name not in failed}
        if not records:
            remove(run.path)
            name, reason = next(iter(failed.items()))
            raise NotMade(f"{name}: {reason}; leave this setting out, or change it")
        alone = task.kind == "unlearn" and len(records) + len(failed) == 1
        _write_folders(task, run, {"" if alone else n: r for n, r in records.items()})
    remove(run.path)
    folders = tuple(out if alone else out / name for name in records)
    return Made(folders, records, failed)


def check_different(task: MakeTask, run: Run) -> None:
    """Refuse draws with the same weights: they count once. What is left of them is removed."""
    store, seen = run.cell(task.cell_id), dict[str, str]()
    for name, model in models_from_json(store.summary()["models"]).items():
        if model.role not in TRAINED or not model.digest:
            continue
        first = seen.setdefault(model.digest, name)
        if first != name:
            remove(store.folder / "steps" / f"train-{name}")
            raise NotMade(
                f"{name} has the same weights as {first}; expected draws that differ; let the "
                "trainer use {seed} for the order of its data, then run the same command again"
            )


def _write_folders(task: MakeTask, run: Run, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write every model's folder, by its name inside the new one; a name may be empty."""
    built, out = run.path / "built", Path(task.config.out)
    remove(built)
    loaded = load(task.config.base, dtype=task.config.engine.dtype)
    models = run.cell(task.cell_id).folder / "models"
    for name, record in records.items():
        weights = models / f"{record['model']}.safetensors"
        write_checkpoint(built / name, loaded, weights, record)
        log = models.parent / "steps" / f"train-{record['model']}" / LOG
        if log.is_file():
            write_bytes(built / name / LOG, log.read_bytes())
    check_new_folder(out)
    publish_folder(built, out)


def _records(task: MakeTask, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each folder with what its ``palimpsest.json`` says."""
    summary = run.cell(task.cell_id).summary()
    config = task.config
    shared = {
        "command": task.kind,
        "seed": config.seed,
        "inputs": run.terms.inputs,
        "code": run.terms.code,
        "packages": run.terms.packages,
        "recipe": task.recipe_record,
        "tokens": summary["work"]["retraining"],
        "engine": asdict(config.engine),
        "prompt": None if task.frame is None else task.frame.text,
    }
    wanted = {"unlearn": (Role.CANDIDATE,), "retrain": TRAINED}
    for name, model in models_from_json(summary["models"]).items():
        if model.role in wanted[task.kind]:
            folder = name if model.role is not Role.REFERENCE else f"{model.seed_no:02d}"
            record = model.to_json()
            record.pop("name")
            yield folder, {"model": name, **record, **shared}
