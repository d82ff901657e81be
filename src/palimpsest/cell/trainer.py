"""References by a user's own trainer: a command that is run once per draw, with a seed of its own.

It gets ``{data}`` (the training file without the forget rows), ``{seed}``, ``{out}`` (a folder that
does not exist yet) and ``{base}``, and leaves a checkpoint in ``{out}`` or in its newest
``checkpoint-N``. What it prints is kept.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from palimpsest.cell.checkpoints import newest_checkpoint
from palimpsest.cell.plan import Commanded
from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.models.checkpoint import checkpoint_state, outline
from palimpsest.run.files import digest, disk_errors, make_folder, remove, write_bytes

LOG = "train.log"
ATTEMPTS = 2
# The trainer ends with the worker that started it: an orphan would go on using a GPU.
_BOUND = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class TrainerFailed(PalimpsestError):
    """A user's own trainer did not leave a usable checkpoint."""

    kind = "trainer"


@dataclass(frozen=True)
class TrainedElsewhere:
    """What a trainer left."""

    name: str
    base: str
    folder: Path
    log: Path

    def state(self, dtype: str) -> Mapping[str, Tensor]:
        """Return its weights; TrainerFailed if they are no checkpoint of base's architecture."""
        place = newest_checkpoint(self.folder) if self.folder.is_dir() else None
        if place is None:
            raise TrainerFailed(
                f"{self.name}: the trainer ended well and left no checkpoint (config.json) in "
                f"{{out}}, {self.folder}; expected one there; its log: {self.log}"
            )
        try:
            return checkpoint_state(str(place), outline(self.base), dtype=dtype)
        except ModelError as error:
            raise TrainerFailed(
                f"{self.name}: what the trainer left is not a model like base ({error}); its log: "
                f"{self.log}"
            ) from error


def command_words(source: Commanded, values: Mapping[str, str]) -> list[str]:
    """Return the words of the command with its placeholders filled in; no shell reads them."""
    words = shlex.split(source.command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def run_trainer(source: Commanded, name: str, base: str, folder: Path) -> TrainedElsewhere:
    """Run the command, once more if it fails; return what it left."""
    data = folder / f"data-{digest(source.data)[7:19]}.jsonl"
    place, log = folder / name / "out", folder / name / LOG
    for new in (folder, log.parent):
        make_folder(new)
    if not data.is_file():
        write_bytes(data, source.data)
    values = {"data": str(data), "seed": str(source.seed), "out": str(place), "base": base}
    words = command_words(source, values)
    remove(log)
    for _ in range(ATTEMPTS):
        remove(place)
        with disk_errors(log, "write"), open(log, "ab") as output:
            output.write(f"$ {shlex.join(words)}\n".encode())
            output.flush()
            code = subprocess.run(
                [sys.executable, "-c", _BOUND, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code == 0:
            return TrainedElsewhere(name, base, place, log)
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    lines = log.read_text(errors="replace").strip().splitlines()
    raise TrainerFailed(
        f"{name} (seed {source.seed}): the trainer ended with {how}, {ATTEMPTS} times; its last "
        f"line: {lines[-1][:300]!r}; its log: {log}; the other draws are kept; correct it, then "
        "run the same command again"
    )
