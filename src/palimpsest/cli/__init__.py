"""The command line: arguments in, answers out, no logic of its own.

stdout carries the answer (one JSON document with ``--json``), everything else goes to stderr. Exit
codes: 0 done, 2 bad input, 3 audit done but uncertified, 1 anything else. Heavy modules are
imported inside the commands, so ``palimpsest --help`` answers at once.

A command is a plain function in the module of its subject: `planning`, `studies`, `criteria`,
`unlearn`, `audits`, `certificates`, `facts`. `options` holds what several of them take, `output`
prints.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from palimpsest import __version__
from palimpsest.cli import (
    audits,
    certificates,
    criteria,
    facts,
    planning,
    studies,
    unlearn,
)
from palimpsest.cli.options import with_flags
from palimpsest.cli.output import answer, say
from palimpsest.errors import PalimpsestError
from palimpsest.run.stop import Raised

__all__ = ["app", "main", "say"]

COMMANDS: tuple[Callable[..., None], ...] = (
    studies.demo,
    planning.design,
    planning.plan,
    studies.study,
    studies.status,
    planning.methods,
    planning.seal,
    studies.report,
    studies.compare,
    unlearn.retrain,
    unlearn.unlearn,
    audits.audit,
    audits.tofu,
    audits.headroom,
    certificates.certify,
    certificates.verify,
    certificates.keygen,
    studies.inferability,
    studies.second_suite,
    criteria.criteria,
)
"""In the order of ``--help``, which ends with the commands of `facts`."""
MODELS = ("torch", "transformers", "tokenizers", "safetensors")
"""Packages of the extra ``models``, without which certificates are verified and runs are read."""


class Stopped(Exception):
    """A KeyboardInterrupt on its way past Typer, which would end the program silently."""


class _Commands(typer.core.TyperGroup):
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise Stopped from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped from error


app = typer.Typer(
    name="palimpsest",
    cls=_Commands,
    help="Test whether a model that unlearned something was restored or only suppressed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        answer(f"palimpsest {__version__}")
        raise typer.Exit


@app.callback()
def _palimpsest(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


for _command in COMMANDS:
    app.command()(with_flags(_command))
app.add_typer(facts.app, name="facts")


def main() -> None:
    """Run a command; a deliberate error becomes one readable paragraph and its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    asked = Raised(_stopped)
    asked.listen(signal.SIGINT, signal.SIGTERM)
    try:
        app()
    except PalimpsestError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt) as error:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        why = error.__cause__ or error
        say(str(why) or str(_stopped(signal.SIGINT)))
        sys.exit(getattr(why, "exit_code", 128 + (asked.signum or signal.SIGINT)))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in MODELS:
            raise
        say(
            f"error: {error.name} is not installed; this command loads or trains models; install "
            "what it needs with: pip install 'palimpsest-audit[models]'"
        )
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _stopped(signum: int) -> KeyboardInterrupt:
    name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
    return KeyboardInterrupt(
        f"stopped by {name}; finished steps are kept; run the same command again to resume"
    )
