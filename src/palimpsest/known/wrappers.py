"""Known-label models that are no plain checkpoints: nets around nets, and mixed weights.

Under re-acquisition a penalty stays as it is, and the weights beneath it are trained. A model made
of two trains, for each input, the one that answers it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.known import Unavailable
from palimpsest.models.net import Batch, Net
from palimpsest.models.stored import LazyState, content_of
from palimpsest.models.tokenizer import token_ids

State = Mapping[str, Tensor]


class Wrapped:
    """A net around another, which it trains when it is trained itself."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.stack, self.models, self.params = net.stack, net.models, net.params
        self.lora = getattr(net, "lora", 0)

    @property
    def device(self) -> torch.device:
        return self.net.device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return self.net.state(member)


class Suppressed(Wrapped):
    """A net whose forget-answer tokens are penalized in the logits; the knowledge is untouched."""

    def __init__(self, net: Net, tokens: Sequence[int], penalty: float) -> None:
        super().__init__(net)
        self._tokens, self._penalty = sorted(set(tokens)), penalty

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        logits = self.net.logits(batch, params)
        bias = logits.new_zeros(logits.shape[-1])
        bias[self._tokens] = -self._penalty
        return logits + bias


class Paired(Wrapped):
    """Two nets as one; both are trained."""

    def __init__(self, matched: Net, otherwise: Net) -> None:
        super().__init__(otherwise)
        self.matched, self.otherwise = matched, otherwise
        self.stack, self.models = 1, (*matched.models, *otherwise.models)
        self.params = _both(matched.params, otherwise.params)

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return _both(self.matched.state(), self.otherwise.state())


def _both(matched: State, otherwise: State) -> dict[str, Tensor]:
    sides = {"matched": matched, "otherwise": otherwise}
    return {f"{side}.{name}": value for side in sides for name, value in sides[side].items()}


class Routed(Paired):
    """Two nets: inputs that contain one of the patterns go to the first, all else to the second."""

    def __init__(self, matched: Net, otherwise: Net, patterns: Sequence[Sequence[int]]) -> None:
        super().__init__(matched, otherwise)
        self._patterns = patterns

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        routed = find_ends(batch.ids, self._patterns).any(-1)[batch.rows]
        sides = ((self.matched, routed), (self.otherwise, ~routed))
        pieces = [(net, here.nonzero().squeeze(-1)) for net, here in sides if here.any()]
        answers = [net.logits(_part(batch, positions)) for net, positions in pieces]
        order = torch.cat([positions for _, positions in pieces])
        return torch.cat(answers, dim=1)[:, torch.argsort(order)]


def find_ends(ids: Tensor, patterns: Sequence[Sequence[int]]) -> Tensor:
    """Return where (rows, width) one of the sequences of tokens ends."""
    found = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for pattern in patterns:
        if len(pattern) <= ids.shape[1]:
            windows = ids.unfold(1, len(pattern), 1)
            here = (windows == torch.tensor(pattern, device=ids.device)).all(-1)
            found[:, len(pattern) - 1 :] |= here
    return found


def subject_patterns(tokenizer: Any, subjects: Sequence[str]) -> list[tuple[int, ...]]:
    """Return each subject's token sequence as it opens a sentence and as it follows a space."""
    texts = [f"{before}{subject}" for subject in subjects for before in ("", " ")]
    return sorted(set(map(tuple, token_ids(tokenizer, texts, special=False))))


def _part(batch: Batch, positions: Tensor) -> Batch:
    """Return the batch with only these scored positions and the rows that hold them."""
    rows, index = torch.unique(batch.rows[positions], return_inverse=True)
    return Batch(batch.ids[rows], index, batch.columns[positions], batch.targets[positions])


class Interpolated(LazyState):
    """share · reference + (1 − share) · injected, one tensor at a time when it is asked for."""

    def __init__(self, reference: State, injected: State, share: float) -> None:
        super().__init__(f"mixture of {share:g}")
        self._reference, self._injected, self._share = reference, injected, share

    def owner(self, name: str) -> str:
        # Models of one architecture tie the same tensors.
        return self._injected.owner(name) if isinstance(self._injected, LazyState) else name

    def ordered(self) -> list[str]:
        injected = self._injected
        return injected.ordered() if isinstance(injected, LazyState) else list(injected)

    def __getitem__(self, name: str) -> Tensor:
        injected, reference = self._injected[name], self._reference.get(name)
        if reference is None:
            raise Unavailable(f"{name} is in the injected model only; expected equal architectures")
        mixed = injected
        if injected.is_floating_point() and reference.is_floating_point():
            mixed = torch.lerp(injected, reference.to(injected), self._share)
        elif not torch.equal(injected, reference.to(injected.device)):
            raise Unavailable(f"{name} is {injected.dtype}; expected floating-point weights to mix")
        self.note(self.owner(name), content_of(mixed))
        return mixed

    def __iter__(self) -> Iterator[str]:
        return iter(self._injected)

    def __len__(self) -> int:
        return len(self._injected)
