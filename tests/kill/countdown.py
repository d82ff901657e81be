"""A fault for tests: ends the process with SIGKILL at one store operation, exactly."""

import os
import signal
from pathlib import Path

from palimpsest.run import disk


class Countdown:
    """Counts the store operations of a process; kills it at number `fatal`, if there is one."""

    def __init__(self, fatal: int | None = None) -> None:
        self.fatal = fatal
        self.operations = 0
        disk.FAULT = self

    def __call__(self, operation: str, path: Path) -> None:
        self.operations += 1
        if self.operations == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
