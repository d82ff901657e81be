"""Silence third-party libraries, and turn their errors into ours."""

import logging as logs
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.models.device import raise_machine_fault


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing: no bars, no warnings, errors only as exceptions."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logs.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def foreign(what: str, expected: str) -> Iterator[None]:
    """Run a library on a user's files, already vetted: quiet, and any failure as one ModelError."""
    try:
        with quiet():
            yield
    except PalimpsestError:
        raise
    except Exception as error:
        raise_machine_fault(error)
        first = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{what} cannot be used ({type(error).__name__}: {first}); expected {expected}; "
            "get the files again, or save them again with save_pretrained"
        ) from error
