"""The challenge models: two wrapped nets and two pieces of weight arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.net import Batch, Net

State = Mapping[str, Tensor]


class Suppressed:
    """A net whose forget-answer tokens are penalised in the logits; the knowledge is untouched."""

    def __init__(self, net: Net, tokens: Sequence[int], penalty: float) -> None:
        self.net = net
        self.stack, self.models, self.params = net.stack, net.models, net.params
        self.optimizer, self.lora = getattr(net, "optimizer", "device"), getattr(net, "lora", 0)
        self._tokens = torch.tensor(sorted(set(tokens)), dtype=torch.int64)
        self._penalty = penalty

    @property
    def device(self) -> torch.device:
        return self.net.device

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        logits = self.net.logits(batch, params)
        bias = logits.new_zeros(logits.shape[-1])
        bias[self._tokens] = -self._penalty
        return logits + bias

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return self.net.state(member)


class Routed:
    """Two nets: inputs that contain one of the patterns go to the first, all else to the second."""

    def __init__(self, matched: Net, otherwise: Net, patterns: Sequence[Sequence[int]]) -> None:
        self.matched = matched
        self.otherwise = otherwise
        self.stack, self.models = 1, (*matched.models, *otherwise.models)
        self.optimizer = getattr(otherwise, "optimizer", "device")
        self.lora = getattr(otherwise, "lora", 0)
        self.params = {f"matched.{name}": value for name, value in matched.params.items()}
        self.params |= {f"otherwise.{name}": value for name, value in otherwise.params.items()}
        self._patterns = [tuple(pattern) for pattern in patterns]

    @property
    def device(self) -> torch.device:
        return self.otherwise.device

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        routed = self.routes(batch.ids)[batch.rows]
        pieces = [
            (net, positions)
            for net, positions in (
                (self.matched, routed.nonzero().squeeze(-1)),
                (self.otherwise, (~routed).nonzero().squeeze(-1)),
            )
            if len(positions)
        ]
        answers = [net.logits(_part(batch, positions)) for net, positions in pieces]
        order = torch.cat([positions for _, positions in pieces])
        return torch.cat(answers, dim=1)[:, torch.argsort(order)]

    def routes(self, ids: Tensor) -> Tensor:
        """Return which rows (rows,) contain a pattern as consecutive tokens."""
        matched = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        for pattern in self._patterns:
            if len(pattern) > ids.shape[1]:
                continue
            windows = ids.unfold(1, len(pattern), 1)
            here = torch.tensor(pattern, device=ids.device)
            matched |= (windows == here).all(-1).any(-1)
        return matched

    def state(self, member: int = 0) -> dict[str, Tensor]:
        parts = (("matched", self.matched), ("otherwise", self.otherwise))
        return {f"{side}.{name}": v for side, net in parts for name, v in net.state().items()}


def corrupted(injected: State, embedding: Sequence[str], tokens: Sequence[int]) -> State:
    """Return the injected weights with the tokens' rows of the named embedding tensors zeroed."""
    rows = sorted(set(tokens))
    changed = dict(injected)
    for name in embedding:
        table = injected[name].clone()
        table[rows] = 0.0
        changed[name] = table
    return changed


class Unavailable(ModelError):
    """Two sets of weights that cannot be mixed."""


class Interpolated(Mapping[str, Tensor]):
    """share · reference + (1 − share) · injected, one tensor at a time when it is asked for."""

    def __init__(self, reference: State, injected: State, share: float) -> None:
        self._reference = reference
        self._injected = injected
        self._share = share

    def __getitem__(self, name: str) -> Tensor:
        injected = self._injected[name]
        if name not in self._reference:
            raise Unavailable(f"{name} is in the injected model only; expected equal architectures")
        reference = self._reference[name]
        if injected.is_floating_point() and reference.is_floating_point():
            return torch.lerp(injected, reference.to(injected), self._share)
        if not torch.equal(injected, reference.to(injected.device)):
            raise Unavailable(
                f"{name} is {injected.dtype}: quantised weights cannot be mixed; "
                "expected floating-point weights"
            )
        return injected

    def __iter__(self) -> Iterator[str]:
        return iter(self._injected)

    def __len__(self) -> int:
        return len(self._injected)


def interpolated(reference: State, injected: State, share: float) -> State:
    """Return share · reference + (1 − share) · injected; no tensor is made before it is used."""
    return Interpolated(reference, injected, share)


def subject_patterns(tokenizer: Any, subjects: Sequence[str]) -> list[tuple[int, ...]]:
    """Return each subject's token sequence as it opens a sentence and as it follows a space."""
    patterns = {
        tuple(tokenizer(f"{before}{subject}", add_special_tokens=False)["input_ids"])
        for subject in subjects
        for before in ("", " ")
    }
    return sorted(patterns)


def _part(batch: Batch, positions: Tensor) -> Batch:
    """Return the batch with only these scored positions and the rows that hold them."""
    rows, index = torch.unique(batch.rows[positions], return_inverse=True)
    return Batch(batch.ids[rows], index, batch.columns[positions], batch.targets[positions])
