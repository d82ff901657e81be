"""Weights that stay in their files are the model's, whatever the model has become since."""

import pytest
import torch
from safetensors.torch import save_file

from palimpsest.models.load import load, state_digest
from palimpsest.models.nets import Nets
from palimpsest.models.stored import StoredState, lasting_state, stored_state


def copied(state) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("name", ["qwen2-s", "gpt2-s", "pythia-s"])
def test_a_folders_weights_are_read_from_it_after_training(tiny_checkpoint, name: str) -> None:
    loaded = load(str(tiny_checkpoint(name)))
    before = copied(loaded.model.state_dict())
    lasting = lasting_state(loaded)
    with torch.no_grad():
        for value in loaded.model.parameters():
            value += 1.0
    assert isinstance(lasting, StoredState)
    assert lasting.keys() == before.keys()
    assert all(torch.equal(lasting[name], value) for name, value in before.items())


def test_weights_that_are_not_the_files_are_copied(tiny_checkpoint) -> None:
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    with torch.no_grad():
        next(loaded.model.parameters()).add_(1.0)
    before = copied(loaded.model.state_dict())
    lasting = lasting_state(loaded)
    with torch.no_grad():
        next(loaded.model.parameters()).add_(1.0)
    assert not isinstance(lasting, StoredState)
    assert all(torch.equal(lasting[name], value) for name, value in before.items())


def test_a_stored_state_has_the_digest_of_the_same_weights_in_memory(tmp_path) -> None:
    # Many tensors of one shape: an address that is used again must not stand for an earlier one.
    state = {f"layer{n}.weight": torch.full((64, 64), float(n)) for n in range(20)}
    save_file(state, tmp_path / "weights.safetensors")
    assert state_digest(stored_state(tmp_path / "weights.safetensors")) == state_digest(state)


def test_a_student_takes_stored_weights_and_refuses_other_shapes(tiny_checkpoint, tmp_path) -> None:
    loaded = load(str(tiny_checkpoint("olmo2-s")))
    other = {name: value + 0.5 for name, value in loaded.model.state_dict().items()}
    save_file({name: value.clone() for name, value in other.items()}, tmp_path / "a.safetensors")
    net = Nets(loaded, stack=1).whole(stored_state(tmp_path / "a.safetensors"))
    assert all(torch.equal(value, other[name]) for name, value in net.state().items())
    name = next(iter(other))
    save_file(other | {name: torch.zeros(3)}, tmp_path / "b.safetensors")
    with pytest.raises(RuntimeError, match="size mismatch"):
        Nets(loaded, stack=1).whole(stored_state(tmp_path / "b.safetensors"))
