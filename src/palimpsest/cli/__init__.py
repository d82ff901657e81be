"""The command line: arguments in, answers out, no logic of its own.

stdout carries the answer (one JSON document with ``--json``), everything else goes to stderr. Exit
codes: 0 done, 2 bad input, 3 audit done but uncertified, 141 nobody reads the answer, 1 anything
else. Heavy modules are imported inside the commands, so ``palimpsest --help`` answers at once.
Every module of this package is imported here and registers its commands with ``app``.
"""

import atexit
import os
import pkgutil
import sys
from importlib import import_module
from typing import NoReturn

from cyclopts.exceptions import CycloptsError

from palimpsest import __version__
from palimpsest.cli import options
from palimpsest.cli.options import app
from palimpsest.cli.output import say
from palimpsest.errors import PalimpsestError, PlanError, show_traceback
from palimpsest.run.signals import Stopped, check_stop, ignore_signals, stop_signals

app.version = f"palimpsest {__version__}"
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    if not _module.startswith("_"):
        import_module(f"palimpsest.cli.{_module}")

MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
"""Packages of the extra ``models``; certificates are verified and runs are read without them."""

UNREAD = 141
"""Exit code where the answer could not be written, as a shell reports it: not that of *failed*."""


def main() -> None:
    """Run a command; a deliberate error becomes one readable paragraph and its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        _run_command()
    finally:
        # A signal that comes while the interpreter ends finds nothing to stop.
        atexit.register(ignore_signals)


def _run_command() -> None:
    with stop_signals():
        try:
            app(sys.argv[1:], exit_on_error=False, print_error=False)
            check_stop()  # a signal that came after the last write
        except CycloptsError as error:
            _fail(_usage(error), 2)
        except PalimpsestError as error:
            show_traceback(error)
            _fail(_named(error), error.exit_code)
        except Stopped as stopped:
            say(str(stopped))
            sys.exit(stopped.exit_code)
        except KeyboardInterrupt:
            _fail("stopped; run the same command again to resume", 130)
        except ModuleNotFoundError as error:
            _fail(_missing(error), 2)
        except BrokenPipeError:
            # What is left in the buffer would be written once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(UNREAD)


def _fail(message: str, code: int) -> NoReturn:
    say(f"error: {message}")
    sys.exit(code)


def _named(error: PalimpsestError) -> str:
    """Return the message; a key that came from a flag is called by the flag."""
    if not isinstance(error, PlanError):
        return str(error)
    key = error.key.partition("[")[0].rpartition(".")[2]
    if key not in options.GIVEN:
        return str(error)
    flag = options.SINGULAR.get(key, key).replace("_", "-")
    return f"--{flag}{str(error).removeprefix(error.key)}"


def _usage(error: CycloptsError) -> str:
    """Return what was wrong with the arguments, and where they are described."""
    command = " ".join(["palimpsest", *(error.command_chain or ())])
    return f"{' '.join(str(error).split())} See {command} --help."


def _missing(error: ModuleNotFoundError) -> str:
    name = (error.name or "").partition(".")[0]
    if name in MODEL_PACKAGES:
        return (
            f"{name} is not installed, and this command loads or trains models; install it with: "
            "pip install 'palimpsest-audit[models]'"
        )
    return f"{name} is not installed; install it with: pip install {name}"
