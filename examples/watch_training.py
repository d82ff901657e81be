"""Log forget, probe and retain NLL while a transformers Trainer unlearns: a gauge, not an audit.

    python examples/watch_training.py MODEL forget.jsonl retain.jsonl probes.jsonl

Forgetting is done when the forget NLL meets the probes'; above it, answers are suppressed.
"""

import sys
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import palimpsest


class WatchAnswers(TrainerCallback):  # type: ignore[misc]
    """Logs the mean answer NLL of each set before the first step and every ``every`` steps."""

    def __init__(self, tokenizer: Any, sets: dict[str, tuple[palimpsest.Fact, ...]], every: int):
        self.tokenizer, self.sets, self.every = tokenizer, sets, every

    def on_train_begin(self, *given: Any, **more: Any) -> None:
        self.on_step_end(*given, **more)

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if state.global_step % self.every == 0:
            values = {f"{name}_nll": self.nll(more["model"], name) for name in self.sets}
            state.log_history.append({"step": state.global_step} | values)
            print(state.log_history[-1])

    @torch.no_grad()
    def nll(self, model: Any, name: str) -> float:
        """Return the mean NLL of the answers, in nats a token, on prompts held out if any are."""
        training, losses = model.training, []
        model.eval()
        for fact in self.sets[name]:
            for prompt in fact.heldout or fact.trained:
                ids = self.tokenizer(f"{prompt} {fact.answer}", return_tensors="pt")["input_ids"]
                labels = ids.clone()
                labels[:, : len(self.tokenizer(prompt)["input_ids"])] = -100
                ids, labels = ids.to(model.device), labels.to(model.device)
                losses.append(model(input_ids=ids, labels=labels).loss.item())
        model.train(training)
        return sum(losses) / len(losses)


if __name__ == "__main__":
    loaded = palimpsest.load(sys.argv[1])
    roles = ("forget", "retain", "probe")
    sets = {role: palimpsest.read_facts(path, role) for role, path in zip(roles, sys.argv[2:])}
    texts = [f"{prompt} {fact.answer}." for fact in sets["retain"] for prompt in fact.trained]
    rows = [{"input_ids": (ids := loaded.tokenizer(t)["input_ids"]), "labels": ids} for t in texts]
    settings = {"max_steps": 10, "per_device_train_batch_size": 1, "save_strategy": "no"}
    options = TrainingArguments("out", use_cpu=True, report_to=[], **settings)
    watch = WatchAnswers(loaded.tokenizer, sets, every=5)
    Trainer(loaded.model.train(), options, train_dataset=rows, callbacks=[watch]).train()
