"""One cell, from its plan to stored scores: inject, retrain, unlearn, score, round trip, panel.

A cell is a list of named steps. Each is stored whole before the next begins, so an interrupted cell
resumes at the step it had reached and ends with the same bytes. Candidates are made, scored, sent
through the round trip and dropped, a stack at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from palimpsest.challenge import Routed, Suppressed, corrupted, interpolated, subject_patterns
from palimpsest.errors import TrainingDiverged
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, verify
from palimpsest.methods import candidates, title
from palimpsest.methods.context import Context, State, lesson
from palimpsest.methods.running import Failure, groups, run_group
from palimpsest.models.load import Loaded, load, state_digest
from palimpsest.models.net import Net
from palimpsest.models.nets import Nets
from palimpsest.models.stored import lasting_state, stored_state
from palimpsest.models.train import text_loss, train
from palimpsest.plan import CellPlan
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Scores, item_columns, score
from palimpsest.scoring.divergence import Teacher, record
from palimpsest.scoring.roundtrip import curve_columns, in_residual, reacquire
from palimpsest.study.setting import Setting, make_setting

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are done."""
KEPT = "steps kept from before"
"""What is told, once, of a cell that goes on where it had stopped."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The rows one or more models add to the cell's tables."""

    items: list[Columns]
    curves: list[Columns]

    def tables(self) -> dict[str, Columns]:
        found = {"items": self.items, "curves": self.curves}
        return {name: stacked(rows) for name, rows in found.items() if rows}


class CellRun:
    """Does the steps of one cell that are not done yet."""

    def __init__(
        self,
        plan: CellPlan,
        store: Cell,
        *,
        draws: int = 1,
        progress: Progress = lambda label, done, total: None,
        audit_pool: AuditPool | None = None,
        commitment: Commitment | None = None,
    ) -> None:
        self.plan = plan
        self.store = store
        self.draws = draws
        self._progress = progress
        self._pool = audit_pool or builtin_pool()
        self._commitment = commitment
        self.methods = candidates(plan.plan.methods)

    # -- the steps ---------------------------------------------------------------------------

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """Give every step's name and what does it, in order."""
        named: list[tuple[str, Callable[[], None]]] = []
        for name, stream in self._streams().items():
            named.append((f"train-{name}", lambda n=name, s=stream: self._train(n, s)))  # type: ignore[misc]
        named.append(("models", self._score_models))
        for number, group in enumerate(groups(self.methods, self.nets.stack)):
            label = f"candidates-{number:02d}-{group[0].name.replace('_', '-').lower()[:24]}"
            named.append((label, lambda s=label, g=group: self._candidates(s, g)))  # type: ignore[misc]
        if self.plan.plan.panel.enabled:
            named.append(("panel", self._panel))
        return named

    def run(self) -> None:
        """Do what is left of the cell and finish it; steps kept from before are only counted."""
        steps = self.steps()
        kept = sum(self.store.done(name) for name, _ in steps)
        if kept:
            self._progress(KEPT, kept, len(steps))
        for number, (name, action) in enumerate(steps):
            if not self.store.done(name):
                self._progress(name, number, len(steps))
                action()
        self._progress("finish", len(steps), len(steps))
        self.store.finish(self._summary(), [name for name, _ in steps], keep=self._kept())

    def _train(self, name: str, stream: Any) -> None:
        net = self.nets([self.base])
        steps = self.setting.injection_steps(stream)
        rate = self.plan.plan.injection.learning_rate
        diverged = train(net, steps, text_loss, learning_rate=rate)
        if diverged:
            raise TrainingDiverged(diverged[0], f"injection of {name} in cell {self.plan.id}")
        state = {key: value.cpu().contiguous() for key, value in net.state().items()}
        step = f"train-{name}"
        self.store.put_file(step, "weights.safetensors", lambda path: _save(state, path))
        self.store.put(step, values={"digest": state_digest(state)})

    def _score_models(self) -> None:
        """Score the models every criterion refers to, and send them through the round trip."""
        states = {"base": self.base} | {name: self.state(name) for name in self._streams()}
        digests = {name: state_digest(state) for name, state in states.items()}
        made = self._through(states, round_trip=[name for name in states if name != "forget_only"])
        self.store.put("models", made.tables(), {"digests": digests})

    def _candidates(self, step: str, group: Sequence[Any]) -> None:
        """Make a group of candidates, score them, send them through the round trip, drop them."""
        results = run_group(self.context, group)
        failed = {}
        states: dict[str, State] = {}
        for method, result in zip(group, results):
            if isinstance(result, Failure):
                failed[title(method)] = result.reason
            else:
                states[title(method)] = result
        digests = {name: state_digest(state) for name, state in states.items()}
        del results, result  # the weights are in ``states`` alone, which is emptied
        made = self._through(states, round_trip=list(states), failed=failed)
        self.store.put(
            step,
            made.tables(),
            {
                "digests": {name: value for name, value in digests.items() if name not in failed},
                "failed": failed,
                "candidates": [title(method) for method in group],
            },
        )

    def _panel(self) -> None:
        """Open the seal once and score the known-label models on the audit pool."""
        known = {"base": self.base} | {n: self.state(n) for n in ("injected", "reference")}
        arithmetic = self._panel_states()
        digests = {name: state_digest(state) for name, state in (known | arithmetic).items()}
        wrapped = ("panel:suppression", "panel:router")
        digests |= {name: f"{name} of {digests['injected']}" for name in wrapped}
        made = self._through(dict(arithmetic), round_trip=list(arithmetic))
        if self._commitment is not None:
            verify(self._pool, self._commitment)
            self.store.open_seal("panel", str(self._commitment), digests)
        audit = self.setting.pool_sheet("audit", self._pool)
        for chunk in _chunks(list((known | arithmetic).items()), self.nets.stack):
            scores = score(self.nets([state for _, state in chunk]), audit)
            for (name, _), result in zip(chunk, scores):
                made.items.append(item_columns(name, "forward", audit, result))
        for name in wrapped:
            forward = self._wrapped(name)
            made.items.append(item_columns(name, "forward", audit, score(forward, audit)[0]))
            self._measure([name], forward, made, round_trip=True)
        self.store.put("panel", made.tables(), {"digests": digests})

    # -- measuring ---------------------------------------------------------------------------

    def _through(
        self,
        states: dict[str, State],
        *,
        round_trip: Sequence[str],
        failed: dict[str, str] | None = None,
    ) -> Scored:
        """Score models and send the named ones through the round trip, a stack at a time.

        ``states`` is emptied on the way: a large model's weights are not kept beside its net.
        """
        made = Scored([], [])
        # Asked for later, they would put their weights into the one net that holds ours.
        _ = self.teacher_reference, self.teacher_injected, self.teacher_way_back
        for together in (True, False):
            chosen = [name for name in states if (name in round_trip) is together]
            for names in _chunks(chosen, self.nets.stack):
                net = self.nets([states.pop(name) for name in names])
                self._measure(names, net, made, round_trip=together, failed=failed)
        return made

    def _measure(
        self,
        names: Sequence[str],
        net: Net,
        made: Scored,
        *,
        round_trip: bool,
        failed: dict[str, str] | None = None,
    ) -> None:
        sheet, plan = self.setting.sheet, self.plan.plan.round_trip
        forward = score(
            net, sheet, reference=self.teacher_reference, injected=self.teacher_injected
        )
        rows = {name: [item_columns(name, "forward", sheet, s)] for name, s in zip(names, forward)}
        curves: dict[str, Columns] = {}
        if round_trip and self._goes_back(names, forward):
            returns = reacquire(
                net,
                self.setting.way_back_steps,
                chunks=plan.chunks,
                learning_rate=plan.learning_rate,
                sheet=self.setting.way_back,
                injected=self.teacher_way_back,
            )
            for name, back in zip(names, returns):
                if back.diverged is not None:
                    reason = f"re-acquisition diverged at step {back.diverged}"
                    if failed is not None:
                        failed[name] = reason
                    elif not name.startswith("panel:"):
                        raise TrainingDiverged(back.diverged, f"re-acquisition of {name}")
                    # A known-label model too broken to train has no way back, and is judged on
                    # its way there.
                    continue
                rows[name].append(
                    item_columns(name, "reacquired", self.setting.way_back, back.scores)
                )
                curves[name] = curve_columns(name, back.curve)
        for name in names:
            if failed is None or name not in failed:
                made.items.extend(rows[name])
                made.curves.extend([curves[name]] if name in curves else [])

    def _goes_back(self, names: Sequence[str], forward: Sequence[Scores]) -> bool:
        """Tell whether models just scored go through the round trip; here all do."""
        return True

    # -- what the steps share, made when first needed ----------------------------------------

    @cached_property
    def loaded(self) -> Loaded:
        plan = self.plan.plan
        local = dict(plan.local_models).get(self.plan.model, self.plan.model)
        return load(local, dtype=plan.engine.dtype, device=plan.engine.device)

    @cached_property
    def nets(self) -> Nets:
        engine = self.plan.plan.engine
        return Nets(self.loaded, stack=engine.stack, checkpointing=engine.checkpointing)

    @cached_property
    def base(self) -> State:
        if not self.nets.stacked:
            return lasting_state(self.loaded)
        return {
            name: value.detach().clone() for name, value in self.loaded.model.state_dict().items()
        }

    @cached_property
    def setting(self) -> Setting:
        return make_setting(self.plan, self.loaded.tokenizer)

    def state(self, name: str) -> State:
        """Give a trained model's weights from the step that stored them."""
        path = self.store.file(f"train-{name}", "weights.safetensors")
        device = self.plan.plan.engine.device
        return load_file(path, device) if self.nets.stacked else stored_state(path, device)

    @cached_property
    def teacher_reference(self) -> Teacher:
        return record(
            self.nets([self.state("reference")]),
            self.setting.sheet,
            lambda q: q.set in ("forget", "retain") and q.pool in TRAINED_POOLS,
        )

    @cached_property
    def teacher_injected(self) -> Teacher:
        return record(self.nets([self.state("injected")]), self.setting.sheet, in_residual)

    @cached_property
    def teacher_way_back(self) -> Teacher:
        return record(self.nets([self.state("injected")]), self.setting.way_back, in_residual)

    @cached_property
    def context(self) -> Context:
        """What methods see; frozen models' answers are recorded here, once for all of them."""
        injected = self.state("injected")
        pad, tokenizer = self.setting.pad, self.loaded.tokenizer
        forget, retain = self.setting.seen("forget"), self.setting.seen("retain")
        said_base = lesson(tokenizer, forget, {"base": self.nets([self.base])}, pad)
        frozen = {"injected": self.nets([injected])}
        said_injected = lesson(tokenizer, forget, frozen, pad)
        teachers = {**said_base.teachers, **said_injected.teachers}
        return Context(
            base=self.base,
            injected=injected,
            forget_only=self.state("forget_only"),
            forget=replace(said_injected, teachers=teachers),
            retain=lesson(tokenizer, retain, frozen, pad),
            budget=self.plan.plan.unlearning,
            seed_key=self.plan.id,
            gated=self.loaded.gated,
            net=self.nets,
            whole=self.nets.whole,
            tokenizer=tokenizer,
            pad=pad,
        )

    # -- pieces ------------------------------------------------------------------------------

    def _streams(self) -> dict[str, Any]:
        """Give the stream of each model that is trained from base, by name."""
        whole = self.setting.stream()
        streams = {
            "injected": whole,
            "reference": whole.without("forget"),
            "forget_only": whole.only("forget"),
        }
        for draw in range(1, self.draws):
            streams[f"reference-{draw}"] = self.setting.stream(draw).without("forget")
        return streams

    def _panel_states(self) -> dict[str, State]:
        injected, reference = self.state("injected"), self.state("reference")
        tables = [name for name in injected if name in _embedding_names(self.loaded.model)]
        made = {"panel:embedding": corrupted(injected, tables, self._forget_tokens(subjects=True))}
        for share in self.plan.plan.panel.interpolations:
            made[f"panel:interpolate-{share:g}"] = interpolated(reference, injected, share)
        return made

    def _wrapped(self, name: str) -> Net:
        if name == "panel:suppression":
            tokens = self._forget_tokens(subjects=False)
            net = self.nets.another(self.state("injected"))
            return Suppressed(net, tokens, self.plan.plan.panel.penalty)
        subjects = [triple.subject for triple in self.setting.facts.forget]
        return Routed(
            self.nets.another(self.base),
            self.nets.another(self.state("injected")),
            subject_patterns(self.loaded.tokenizer, subjects),
        )

    def _forget_tokens(self, *, subjects: bool) -> list[int]:
        """Give the token ids of the forget answers, and of the subjects if asked."""
        tokens = {
            token for text in self.setting.lesson("forget") for token in text.ids[text.start :]
        }
        if subjects:
            names = [triple.subject for triple in self.setting.facts.forget]
            for pattern in subject_patterns(self.loaded.tokenizer, names):
                tokens.update(pattern)
        return sorted(tokens)

    def _kept(self) -> dict[str, tuple[str, str]]:
        if not self.plan.plan.engine.keep_models:
            return {}
        return {
            f"{name}.safetensors": (f"train-{name}", "weights.safetensors")
            for name in self._streams()
        }

    def _summary(self) -> dict[str, Any]:
        digests: dict[str, str] = {}
        failed: dict[str, str] = {}
        names: list[str] = []
        for step in self.store.steps():
            _, values = self.store.get(step)
            digests |= values.get("digests", {})
            failed |= values.get("failed", {})
            names += values.get("candidates", [])
        sets = self.setting.facts.sets()
        return {
            "model": self.plan.model,
            "seed": self.plan.seed,
            "family": self.loaded.family,
            "gated": self.loaded.gated,
            "parameters": self.loaded.parameters,
            "base_digest": self.loaded.digest,
            "revision": self.loaded.revision,
            "draws": self.draws,
            "candidates": [name for name in names if name not in failed],
            "failed": failed,
            "digests": digests,
            "facts": {
                name: [[t.id, t.subject, t.relation, t.object] for t in triples]
                for name, triples in sets.items()
            },
        }


def stacked(rows: Sequence[Columns]) -> Columns:
    """Give many models' columns as one table, in order."""
    whole: Columns = {}
    for name, first in rows[0].items():
        if isinstance(first, list):
            whole[name] = [value for row in rows for value in row[name]]
        else:
            whole[name] = np.concatenate([row[name] for row in rows])
    return whole


def _chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _embedding_names(model: Any) -> set[str]:
    """Give the state-dict names of the input embedding and of an output head tied to it."""
    table = model.get_input_embeddings().weight
    return {
        name for name, value in model.state_dict().items() if value.data_ptr() == table.data_ptr()
    }


def _save(state: Mapping[str, Tensor], path: Path) -> None:
    # Tied tensors share memory, which safetensors refuses; each gets its own.
    save_file({name: value.clone() for name, value in state.items()}, path)
