"""Shared by all tests: one thread, no network, a small tokenizer and tiny random checkpoints."""

import os
import socket

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


class NetworkUsed(RuntimeError):
    """A test tried to reach beyond this machine."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
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
