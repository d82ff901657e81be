"""The drawing of a report's figures, shared with a second process where a processor is free.

The second process is a fork: it has everything imported and all figures made, draws its share and
sends the bytes. What it does not send is drawn here, so that it can fail without harm.
"""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from matplotlib.figure import Figure

from palimpsest.report.plots.canvas import Picture, keep, png_bytes, svg_bytes

Bytes = dict[int, dict[str, bytes]]
"""Of a figure, by its place: its bytes, by format."""


def draw_together(pictures: Sequence[Picture]) -> None:
    """Draw all figures as SVG, and those that become files as PNG, with a second process."""
    figures = {place: picture.figure for place, picture in enumerate(pictures)}
    figures |= {-1 - n: p.narrow for n, p in enumerate(pictures) if p.narrow is not None}
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or len(figures) < 2:
        return  # each is drawn when it is asked for
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    mine, other = _shares(figures)
    process = context.Process(target=_send, args=(theirs, other), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread is at work here
        process.start()
    theirs.close()
    _draw(mine)
    try:
        received: Bytes = ours.recv()
    except EOFError:
        received = {}
    process.join()
    for place, drawn in received.items():
        keep(figures[place], drawn)


def _shares(figures: dict[int, Figure]) -> tuple[dict[int, Figure], dict[int, Figure]]:
    """Return two shares of about the same work, which grows with what is in a figure."""
    shares: tuple[dict[int, Figure], dict[int, Figure]] = ({}, {})
    work = [0, 0]
    sizes = {place: len(figure.findobj()) for place, figure in figures.items()}
    for place in sorted(figures, key=lambda place: -sizes[place]):
        lighter = work.index(min(work))
        work[lighter] += sizes[place]
        shares[lighter][place] = figures[place]
    return shares


def _draw(figures: dict[int, Figure]) -> Bytes:
    return {
        place: {"svg": svg_bytes(figure)} | ({"png": png_bytes(figure)} if place >= 0 else {})
        for place, figure in figures.items()
    }


def _send(pipe: "Connection[Any, Any]", figures: dict[int, Figure]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.send(_draw(figures))
