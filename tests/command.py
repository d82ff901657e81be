"""The command line in this process: what it prints, what it complains of, how it ends."""

import contextlib
import io
import signal
import sys
from dataclasses import dataclass
from unittest import mock

from palimpsest import cli


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def palimpsest(*arguments: str) -> Done:
    """Run a command through ``main``, as the program does; its signal handlers are taken back."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    try:
        with (
            mock.patch.object(sys, "argv", ["palimpsest", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.unraisablehook = hook
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    return Done(code, out.getvalue(), err.getvalue())
