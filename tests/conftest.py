"""Shared by all tests: one thread, no network, a small tokenizer and tiny random checkpoints."""

import os
import signal
import socket
import tempfile
from pathlib import Path

# A shell starts what runs in its background with SIGINT ignored; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

from tests import reliability
from tests.shared_runs import tiny_audit, tiny_study

__all__ = ["tiny_audit", "tiny_study"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "reliability(point): part of `make reliability`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests behind docs/reliability.md."""
    for item in items:
        for point in reliability.points(item.nodeid.partition("::")[0].removeprefix("tests/")):
            item.add_marker(pytest.mark.reliability(point))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if reliability.FULL and reliability.tallied():
        terminalreporter.section("counts")
        for line in reliability.tallied():
            terminalreporter.write_line(line)


@pytest.fixture
def quick(tmp_path):
    """A folder in memory where there is one: a flush to a disk takes milliseconds.

    A kill leaves the same files there; full runs use a disk all the same.
    """
    memory = Path("/dev/shm")
    if reliability.FULL or not os.access(memory, os.W_OK):
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir=memory) as name:
            yield Path(name)


class NetworkUsed(RuntimeError):
    """A test tried to reach beyond this machine."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Let sockets reach this machine only: importing and testing need no network."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(str(host)):
            raise NetworkUsed(f"connection to {address!r}; tests must not use the network")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", local_only)


def _is_local(host: str) -> bool:
    if host.startswith("127.") or host in ("localhost", "::1", "0.0.0.0", ""):
        return True
    return host in _own_addresses()


def _own_addresses() -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A tokenizer whose tokens are the 256 bytes and an end-of-text mark."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {sign: n for n, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory, byte_tokenizer):
    """Give a function from a pocket name to the folder of a tiny random checkpoint of its kind."""
    import torch
    from dev.bake_pocket import pocket_config
    from transformers import AutoModelForCausalLM

    from palimpsest.models.sources import pocket_spec
    from tests.checkpoints import saved

    root = tmp_path_factory.mktemp("checkpoints")

    def make(name: str, seed: int = 0):
        folder = root / f"{name}-{seed}"
        if not folder.exists():
            torch.manual_seed(seed)
            size, end = len(byte_tokenizer), byte_tokenizer.eos_token_id
            config = pocket_config(pocket_spec(name), size, end)
            saved(folder, AutoModelForCausalLM.from_config(config), byte_tokenizer)
        return folder

    return make


@pytest.fixture
def make_adapter(tmp_path):
    """Give a function that saves a random adapter of a checkpoint; returns its folder and peft's
    own model."""
    peft = pytest.importorskip("peft")
    import torch
    from transformers import AutoModelForCausalLM

    def make(base, **settings):
        model = AutoModelForCausalLM.from_pretrained(base).eval()
        config = peft.LoraConfig(r=4, lora_alpha=16, task_type="CAUSAL_LM", **settings)
        shell = peft.get_peft_model(model, config).eval()
        torch.manual_seed(1)
        for name, value in shell.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value)
        shell.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", shell

    return make
