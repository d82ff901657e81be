"""The work of a cell: one action per kind of step, and the summary of the finished cell."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from palimpsest.cell.checkpoints import newest_checkpoint
from palimpsest.cell.measure import Measured, result_tables, stack_columns
from palimpsest.cell.models import WEIGHTS, CellModels, State
from palimpsest.cell.plan import CellPlan, Commanded, Given, Trained
from palimpsest.cell.planned import candidate_model, known_label_model
from palimpsest.cell.steps import PARTS, StepKind, chunked
from palimpsest.config.commands import LADDER
from palimpsest.errors import (
    MethodError,
    ModelError,
    PalimpsestError,
    TrainingDiverged,
)
from palimpsest.facts.sealed import verify
from palimpsest.known import Unavailable, chosen
from palimpsest.known.wrappers import Interpolated
from palimpsest.methods import title
from palimpsest.methods.running import run_group
from palimpsest.models.checkpoint import LazyState, checkpoint_state, outline, state_digest
from palimpsest.models.device import machine_faults, repeatable
from palimpsest.models.net import Net
from palimpsest.models.train import text_loss, train
from palimpsest.run.cell import CellStore
from palimpsest.run.files import digest, disk_errors, make_folder, remove, write_bytes
from palimpsest.run.steps import Step
from palimpsest.scoring.answers import Scores, Sheet, item_columns, score
from palimpsest.scoring.reacquisition import reacquire, summarize
from palimpsest.stats.controls import DOSE
from palimpsest.stats.models import Model, ModelFailure, Role

DESCRIBED = ("family", "gated", "parameters", "revision")
"""What is recorded of a cell's base beside its digest."""
LOG = "train.log"
# A user's trainer ends with the worker that started it: an orphan would go on using a GPU.
_BOUND = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""
SPARE = 0.1
"""How much further than ``DOSE`` a reference must come when the learning rate is chosen on it: the
other references may come less far."""


class CellWork(CellModels):
    """The actions of a cell's steps."""

    def __init__(self, plan: CellPlan) -> None:
        super().__init__(plan)
        self._actions: dict[str, Callable[[Step], None]] = {
            StepKind.TRAIN: self._train,
            StepKind.HEADROOM: self._headroom,
            StepKind.DOSE: self._dose,
            StepKind.MEASURE: self._measure,
            StepKind.UNLEARN: self._unlearn,
            StepKind.KNOWN_LABEL: self._known_label,
        }

    def do(self, step: Step, store: CellStore) -> None:
        """Do one step and store its result."""
        repeatable(self.plan.texts.engine.device)
        self.store = store
        with machine_faults():
            self._actions[str(step.kind)](step)

    def finish(self, store: CellStore) -> dict[str, Any]:
        """Return what ``cell.json`` says of the cell: its models with what became of them."""
        self.store = store
        outcomes: dict[str, dict[str, Any]] = {}
        for step in self.steps:
            for name, outcome in store.get(step)[1].get("models", {}).items():
                outcome.pop("weights", None)  # the step's own file; the cell's is the model's
                roster = {"roster": store.manifest(step.name)["roster"]}
                outcomes.setdefault(name, {}).update(outcome | roster)
        base = outcomes.get("base", {})
        described = {key: base.pop(key) for key in DESCRIBED if key in base}
        models = [Model("base", Role.BASE, source=self.plan.base.digests.files)]
        models += [entry.model for entry in self.plan.models]
        records = {model.name: model.to_json() for model in models}
        for name, outcome in outcomes.items():
            records.setdefault(name, {"name": name}).update(outcome)
        beacon, sets = self.plan.texts.beacon, self.plan.texts.facts.sets()
        return described | {
            "model": self.plan.title,
            "seed": self.plan.seed,
            "models": [record for record in records.values() if self._shown(record)],
            # No question or answer of a user's.
            "facts": {name: [[f.id, f.relation] for f in facts] for name, facts in sets.items()},
            "beacon": None if beacon is None else beacon.record(),
            "dose": self._chosen_rate(),
            "headroom": "headroom" in self.step_named,
            "work": self.work,
        }

    def _shown(self, record: Mapping[str, Any]) -> bool:
        return self.plan.measured or "digest" in record or "failure" in record

    def keep(self, store: CellStore) -> dict[str, tuple[Step, str]]:
        """Return the weights that a finished cell keeps."""
        kept: dict[str, tuple[Step, str]] = {}
        for step in self.steps:
            if step.kind == StepKind.TRAIN and not step.transient:
                kept[f"{step.models[0]}.safetensors"] = (step, WEIGHTS)
            elif step.kind == StepKind.UNLEARN:
                for name, outcome in store.get(step)[1]["models"].items():
                    if file := outcome.get("weights"):
                        kept[f"{name}.safetensors"] = (step, file)
        return kept

    # -- the actions -----------------------------------------------------------------------------

    def _train(self, step: Step) -> None:
        name = step.models[0]
        match self.source(name):
            case Commanded() as source:
                folder = self.store.folder.parents[1] / "trainer"
                base, dtype = self.plan.base.place, self.plan.texts.engine.dtype
                state = run_trainer(source, name, base, folder, dtype)
                self.store.put_file(step, LOG, (folder / name / LOG).read_bytes())
                remove(folder / name)
            case Trained(sets, draw):
                texts = self.texts
                stream, net = texts.stream(draw, sets), self.nets([self.base])
                diverged = train(
                    net,
                    texts.injection_steps(stream),
                    text_loss,
                    learning_rate=texts.learning_rate,
                    key=f"{self.plan.id}/{draw}",
                    rates=stream.rates,
                    weight_decay=texts.weight_decay,
                )
                if diverged:
                    what = f"{name} of cell {self.plan.id} at learning rate"
                    raise TrainingDiverged(diverged[0], f"{what} {texts.learning_rate:g}")
                state = {key: value.cpu().contiguous() for key, value in net.state().items()}
        self.store.put_file(step, WEIGHTS, partial(save_weights, state))
        self.store.put(step, values={"models": {name: {"digest": state_digest(state)}}})

    def _headroom(self, step: Step) -> None:
        """Score base with and without evidence, and injected (and a reference) without."""
        with_evidence = self.texts.make_sheet(self.texts.with_evidence)
        asked = {question.id for question in with_evidence.questions}
        questions = [q for q in self.texts.facts.questions if q.id in asked]
        plain = self.texts.make_sheet(questions)
        rows = []
        shown = ("base", "evidence", "injected", *([self.plan.oracle] if self.plan.oracle else ()))
        for name in shown:
            sheet = with_evidence if name == "evidence" else plain
            net = self.nets([self.base if name == "evidence" else self.state(name)])
            label = "reference" if name == self.plan.oracle else name
            rows.append(item_columns(label, "forward", sheet, score(net, sheet)[0]))
        self.store.put(step, {"headroom": stack_columns(rows)})

    def _dose(self, step: Step) -> None:
        """Choose the smallest learning rate that brings a reference far enough."""
        texts = self.plain_texts
        sheet, reference = texts.reacquired_sheet, self.plan.choose_rate_on
        net = self.nets([self.state("injected")])
        level = summarize(sheet, score(net, sheet)[0]).forget_heldout_nll
        self._check_roles(net)
        # Read once for all rates; there is room, since its optimizer keeps one moment at most.
        state = self.state(reference)
        state = state.in_memory() if isinstance(state, LazyState) else state
        start: list[Scores] = []
        tried: list[dict[str, float]] = []
        for rate in LADDER:
            net = self.nets([state])
            start = start or score(net, sheet)
            course = reacquire(
                net,
                texts.reacquisition_steps,
                chunks=1,  # only how far it comes is asked
                learning_rate=rate,
                sheet=sheet,
                before=start,
                optimizer="adamw" if texts.beacon is None else texts.beacon.optimizer,
                base_scales=self.base_scales,
            )[0]
            if course.diverged is not None:
                break
            before, after = (course.curve[n].forget_heldout_nll for n in (0, -1))
            reached = (before - after) / (before - level) if before > level else 0.0
            tried.append({"learning_rate": rate, "reached": reached})
            if reached >= DOSE + SPARE or before <= level:
                break
        if not tried:
            raise TrainingDiverged(
                course.diverged or 0,
                f"re-acquisition of {reference} at learning rate {rate:g}, the smallest tried; "
                "give one with --learning-rate",
            )
        best = max(tried, key=lambda entry: entry["reached"])
        values = {"learning_rate": best["learning_rate"], "tried": tried, "of": reference}
        self.store.put(step, values=values)

    def _measure(self, step: Step) -> None:
        """Measure base, injected, references, retrainings, controls or given candidates."""
        if "base" in step.models and "dose" not in self.step_named:
            self._check_roles(self.nets([self.state("injected")]))
        outcomes: dict[str, dict[str, Any]] = {}
        results: list[Measured] = []
        scorer = self.scorer  # before a net that shares the student is made
        for names in chunked(step.models, self.nets.stack):
            parts = [name for name in names if self.role(name) in PARTS]
            asked = [name for name in names if name not in parts and self._answers(name)]
            others = [name for name in names if name not in (*parts, *asked)]
            for alike in (asked, others, parts):
                known, net = self._filled(alike, outcomes)
                if net is not None:
                    results += scorer.measure(
                        known, net, asked=alike is asked, reacquired=alike is not parts
                    )
        for result in results:
            if self._needed(result.name):
                result.check()
        if "base" in outcomes:
            outcomes["base"] |= {key: getattr(self.loaded, key) for key in DESCRIBED}
        self._store(step, results, outcomes)

    def _unlearn(self, step: Step) -> None:
        """Make a group of candidates; measure them, or keep their weights as the product."""
        methods = [method for method in self.plan.methods if title(method) in step.models]
        outcomes: dict[str, dict[str, Any]] = {}
        results: list[Measured] = []
        keeps = "candidates" in self.plan.texts.engine.keep or not self.plan.measured
        for several in chunked(methods, self.nets.stack):
            states: dict[str, State] = {}
            for method, made in zip(several, run_group(self.context, several)):
                name = title(method)
                outcomes[name] = candidate_model(method).to_json()
                if isinstance(made, ModelFailure):
                    outcomes[name]["failure"] = asdict(made)
                else:
                    outcomes[name]["digest"] = state_digest(made)
                    states[name] = made
                    if keeps:
                        file = f"candidate_{len(outcomes)}.safetensors"
                        outcomes[name]["weights"] = file
                        self.store.put_file(step, file, partial(save_weights, made))
                spent = self.context.shared.costs.get(name)
                if spent is not None:
                    cost = spent.in_retrainings(self.loaded.parameters, self.retraining)
                    outcomes[name]["cost"] = asdict(cost)
            if self.plan.measured:
                results += self._through(states, asked=True)
        self._store(step, results, outcomes)

    def _known_label(self, step: Step) -> None:
        """Open the sealed pool for the known-label models, then score them on it, once."""
        known = ("base", "injected", self.plan.oracle)
        pool, commitment = self.plan.sealed_pool
        digests = {name: state_digest(self.state(name)) for name in known}
        outcomes: dict[str, dict[str, Any]] = {}
        states: dict[str, State] = {}
        again: list[Any] = []
        for entry in chosen(self.plan.known_label):
            outcomes[entry.model] = known_label_model(entry).to_json()
            try:
                built = entry.build(self.adversary_kit)
            except (Unavailable, MethodError, TrainingDiverged) as error:
                failure = ModelFailure("unavailable", str(error))
                outcomes[entry.model]["failure"] = asdict(failure)
                continue
            if not isinstance(built, Mapping):
                outcomes[entry.model]["wrapper"] = True
            state = built if isinstance(built, Mapping) else built.state()
            digests[entry.model] = outcomes[entry.model]["digest"] = state_digest(state)
            if isinstance(built, Interpolated) or (self.nets.stacked and state is built):
                states[entry.model] = state
            else:  # built again when it is measured, so that one is in memory at a time
                again.append(entry)
            del built, state
        verify(pool, commitment)
        self.store.open_seal(step, commitment, digests)
        sealed = self.texts.pool_sheet("audit", pool)
        results: list[Measured] = []
        for names in chunked(known, self.nets.stack):
            asked = [Measured("reference" if n == self.plan.oracle else n) for n in names]
            self.scorer.score(asked, self.nets([self.state(n) for n in names]), sealed)
            results += asked
        for result in results:
            result.check()
        results += self._through(states, also=[sealed])
        for entry in again:
            built = entry.build(self.adversary_kit)
            net = self.nets([built]) if isinstance(built, Mapping) else built
            results += self.scorer.measure([entry.model], net, also=[sealed])
        for result in results:
            if result.diverged is not None:
                # A known-label model too damaged to be trained is judged on its forward scores.
                outcomes[result.name]["diverged"] = result.diverged
                result.failure = None
        self._store(step, results, outcomes)

    # -- pieces of the actions -------------------------------------------------------------------

    def _check_roles(self, injected: Net) -> None:
        """Refuse a given injected model that knows the forget facts no better than the base."""
        if not isinstance(self.source("injected"), Given):
            return
        sheet = self.plain_texts.make_sheet(self.plain_texts.seen("forget"))
        taught = float(score(injected, sheet)[0].nll_sum.sum()) / sum(sheet.tokens)
        before = float(score(self.nets([self.base]), sheet)[0].nll_sum.sum()) / sum(sheet.tokens)
        if before <= taught:
            raise ModelError(
                f"injected: knows the forget facts no better than base (NLL {taught:.2f} per "
                f"token against {before:.2f}); expected a model that was trained on them; check "
                "that base and injected are not swapped"
            )

    def _filled(
        self, names: Sequence[str], outcomes: dict[str, dict[str, Any]]
    ) -> tuple[list[str], Net | None]:
        """Return the models that can be read and a net of them; note their digests, or why not.

        A large model is read once, into the net, and hashed on the way.
        """
        states: dict[str, State] = {}
        net = None
        for name in names:
            try:
                state = self.state(name)
                if self.nets.stacked:
                    states[name] = state.in_memory() if isinstance(state, LazyState) else state
                else:
                    net, states[name] = self.nets([state]), state
                outcomes[name] = {"digest": state_digest(state)}
            except (ModelError, Unavailable) as error:
                if self._needed(name):
                    raise
                kind = "unavailable" if isinstance(error, Unavailable) else "model_error"
                outcomes[name] = {"failure": asdict(ModelFailure(kind, str(error)))}
        if self.nets.stacked and states:
            net = self.nets(list(states.values()))
        return list(states), net

    def _through(
        self,
        states: dict[str, State],
        *,
        reacquired: bool = True,
        also: Sequence[Sheet] = (),
        asked: bool = False,
    ) -> list[Measured]:
        """Measure models a stack at a time.

        ``states`` is emptied on the way: a large model's weights are not kept beside its net.
        """
        scorer = self.scorer  # before a net that shares its memory is made
        results: list[Measured] = []
        for names in chunked(tuple(states), self.nets.stack):
            net = self.nets([states.pop(name) for name in names])
            results += scorer.measure(names, net, reacquired=reacquired, also=also, asked=asked)
        return results

    def _store(
        self, step: Step, results: Sequence[Measured], outcomes: Mapping[str, dict[str, Any]]
    ) -> None:
        """Store the rows of the models that were measured, and why the others were not."""
        for result in results:
            if result.failure is not None:
                outcomes[result.name]["failure"] = asdict(result.failure)
        self.store.put(step, result_tables(results), {"models": outcomes})

    def _answers(self, name: str) -> bool:
        """Tell whether a model's answers are shown: base, injected, candidates, one retraining."""
        first = next((e.name for e in self.plan.of(Role.REFERENCE) if not e.model.same_draw), "")
        shown = (Role.BASE, Role.INJECTED, Role.CANDIDATE)
        return self.role(name) in shown or name == first

    def _needed(self, name: str) -> bool:
        """Tell whether the cell cannot be judged without the model."""
        return self.role(name) in (Role.BASE, Role.INJECTED, Role.REFERENCE, *PARTS)


def save_weights(state: State, path: Path) -> None:
    """Write weights to a safetensors file."""
    # Tied tensors share memory, which safetensors refuses; each gets its own.
    save_file({name: value.clone() for name, value in state.items()}, path)


# -- a user's own trainer --------------------------------------------------------------------------


class NotMade(PalimpsestError):
    """A model could not be made; what was finished is kept."""

    kind = "not_made"


def run_trainer(
    source: Commanded, name: str, base: str, folder: Path, dtype: str
) -> dict[str, Tensor]:
    """Run a user's own trainer for one draw and return the weights that it left.

    The command gets ``{data}`` (the training file without the forget rows), ``{seed}``, ``{out}``
    (a folder that does not exist yet) and ``{base}``, and leaves a checkpoint in ``{out}`` or in
    its newest ``checkpoint-N``. What it prints is in ``FOLDER/NAME/train.log``.
    """
    data = folder / f"data-{digest(source.data)[7:19]}.jsonl"
    out, log = folder / name / "out", folder / name / LOG
    remove(out)
    make_folder(log.parent)
    write_bytes(data, source.data)
    words = shlex.split(source.command)
    values = {"data": data, "seed": source.seed, "out": out, "base": base}
    for key, value in values.items():
        words = [word.replace(f"{{{key}}}", str(value)) for word in words]
    with disk_errors(log, "write"), open(log, "wb") as output:
        output.write(f"$ {shlex.join(words)}\n".encode())
        output.flush()
        code = subprocess.run(
            [sys.executable, "-c", _BOUND, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    place = newest_checkpoint(out)
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        last = log.read_text(errors="replace").strip().splitlines()[-1]
        problem = f"ended with {how}; its last line: {last[:300]!r}"
    elif place is None:
        problem = f"left no checkpoint (config.json) in {{out}}, {out}; expected one there"
    else:
        try:
            return dict(checkpoint_state(str(place), outline(base), dtype=dtype))
        except ModelError as error:
            problem = f"left a checkpoint that is not a model like base ({error})"
    raise NotMade(
        f"{name} (seed {source.seed}): the trainer {problem}; its log: {log}; the other draws are "
        "kept; correct it, then run the same command again"
    )
