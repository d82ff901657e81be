"""What a user asks of an audit, the same from flags, a YAML file or Python.

Every way in ends in ``make_request``, which takes plain values and returns one frozen
``AuditRequest``; what is wrong is named by its key. Paths in a YAML file start at the file's own
folder. Nothing here opens a model or a facts file.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from palimpsest.audit.folder import checkpoints_in
from palimpsest.criteria.rules import Rules
from palimpsest.errors import InputError, PlanError
from palimpsest.facts.general import POCKET
from palimpsest.facts.names import candidate_name, shown, shown_path
from palimpsest.models.device import check_device, check_lora
from palimpsest.plan import Engine, General, Plan, RoundTrip, check
from palimpsest.schema import build, read_yaml

LADDER = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
"""Learning rates of re-acquisition that are tried on a reference where none is given."""
_FILES = ("forget", "retain", "probes", "general", "out")
_FOLDERS = ("candidates_folder", "references_folder")
_MODELS = ("base", "injected", "adapter_base")
_NEEDED = ("base", "injected", "forget", "retain", "general", "out")
_TAKEN = re.compile(r"(control|retraining)-\d[\d.]*|general_only")
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class AuditRequest:
    """One audit: which models and files, and every setting that can change a number."""

    base: str
    injected: str
    candidates: tuple[tuple[str, str], ...]
    """Name and place (folder, .gguf file, Hugging Face id) of each, in the order of the table."""
    forget: str
    retain: str
    general: str
    """Path of a plain-text file, or ``pocket``."""
    out: str
    probes: str | None = None
    generate_probes: Annotated[int, Ge(0)] = 0
    """How many probes to generate when no file of probes is given."""
    references: tuple[str, ...] = ()
    """Places of the retrainings; their order does not matter."""
    adapter_base: str | None = None
    """The model under LoRA adapters, where their own config does not name it."""
    round_trip: Literal["survivors", "all"] = "survivors"
    rules: Rules = field(default_factory=Rules)
    steps: Count = 75
    chunks: Count = 5
    items: Count = 4
    learning_rate: Annotated[float, Gt(0)] | None = None
    """Of re-acquisition; None chooses it on the first reference."""
    scored_pieces: Count = 24
    piece_tokens: Annotated[int, Ge(4)] = 28
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: Annotated[int, Ge(64)] = 8192
    accumulate: Count = 1
    checkpointing: bool = False
    optimizer: Literal["device", "host", "8bit"] = "device"
    lora: Annotated[int, Ge(0)] = 0
    """Rank of the adapters that every model is re-acquired with; 0 trains its weights."""
    chat: bool = False
    """Ask the facts through the base's chat template, and teach them through it."""
    notes: tuple[tuple[str, str], ...] = ()
    """What another toolkit measured of a candidate, as JSON text; reported, never used."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Sub-folders of the given folders that were left out, and as what they were given."""

    @property
    def chooses_rate(self) -> bool:
        """Whether the learning rate of re-acquisition is chosen on a reference."""
        return self.learning_rate is None and bool(self.references)

    def plan(self, learning_rate: float | None = None) -> Plan:
        """Return the settings as a checked plan, of which an audit is one cell."""
        rate = learning_rate or self.learning_rate or RoundTrip.learning_rate
        general = General(
            self.general, scored_pieces=self.scored_pieces, piece_tokens=self.piece_tokens
        )
        return check(
            Plan(
                name="audit",
                models=("audit",),
                seeds=(0,),
                round_trip=RoundTrip(self.steps, self.chunks, rate, self.items),
                general=general,
                engine=Engine(
                    self.device,
                    self.dtype,
                    batch_tokens=self.batch_tokens,
                    accumulate=self.accumulate,
                    checkpointing=self.checkpointing,
                    optimizer=self.optimizer,
                    lora=self.lora,
                ),
                rules=self.rules,
            )
        )

    def dose(self, learning_rate: float | None = None) -> str:
        """Return the dose of re-acquisition in words."""
        rate = learning_rate or self.learning_rate
        size = f"{self.steps} steps of {self.items} sentences"
        size += f" by LoRA of rank {self.lora}" if self.lora else ""
        if rate is None and self.chooses_rate:
            return f"{size} at a learning rate that is chosen on a reference"
        return f"{size} at learning rate {rate or RoundTrip.learning_rate:g}"


def make_request(values: Mapping[str, Any], folder: Path | None = None) -> AuditRequest:
    """Return the checked request that plain values describe.

    folder: where relative paths of files, and of models that exist there, start.
    """
    given = {key: _plain(value) for key, value in values.items() if value is not None}
    known = {item.name for item in fields(AuditRequest)} - {"notes", "left_out"}
    for key in given:
        if key not in known | set(_FOLDERS):
            names = ", ".join(sorted(known | set(_FOLDERS)))
            raise PlanError(f"{shown(str(key))[1:-1]}: unknown key; known here are {names}")
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        raise PlanError(
            f"{missing[0]}: missing; an audit needs {', '.join(f'--{key}' for key in _NEEDED)}, "
            "--candidate or --candidates-folder, and --probes or --generate-probes (in a file the "
            "same without dashes, and candidates, candidates_folder, generate_probes)"
        )
    for key in (*_FILES, *_FOLDERS):
        if key in given and not (key == "general" and given[key] == POCKET):
            given[key] = _from(folder, _text(key, given[key]))
    for key in _MODELS:
        if key in given:
            given[key] = _model(folder, _text(key, given[key]))
    references = given.get("references", ())
    if isinstance(references, list | tuple):
        given["references"] = tuple(
            _model(folder, _text(f"references[{n}]", place)) for n, place in enumerate(references)
        )
    named = [(name, _model(folder, place)) for name, place in _pairs(given.get("candidates", {}))]
    given["candidates"] = tuple(named)
    _add_folders(given, folder)
    request = build(AuditRequest, given)
    _check(request, given)
    return request


def request_from_yaml(path: Path | str, over: Mapping[str, Any] | None = None) -> AuditRequest:
    """Return the request in a YAML file; ``over`` are flags, which win over the file's values."""
    path = Path(path)
    values = read_yaml(path, "keys such as base, injected, candidates")
    flags = {key: _plain(value) for key, value in (over or {}).items() if value is not None}
    # A flag's paths start at the working directory, the file's at the file's folder.
    for key in (*_FILES, *_FOLDERS, *_MODELS):
        if isinstance(flags.get(key), str):
            flags[key] = _absolute(key, flags[key])
    if isinstance(flags.get("references"), list):
        flags["references"] = [_absolute("references", place) for place in flags["references"]]
    if "candidates" in flags:
        pairs = _pairs(flags["candidates"])
        flags["candidates"] = {name: _absolute("candidates", place) for name, place in pairs}
    if {"probes", "generate_probes"} & flags.keys():
        values.pop("probes", None)
        values.pop("generate_probes", None)
    if "rules" in flags and isinstance(values.get("rules"), dict):
        flags["rules"] = values["rules"] | flags["rules"]
    return make_request({**values, **flags}, path.resolve().parent)


def _check(request: AuditRequest, given: Mapping[str, Any]) -> None:
    if not request.candidates:
        raise PlanError(
            "candidates: none given; name at least one with --candidate NAME=PATH, or a folder of "
            "them with --candidates-folder (candidates, candidates_folder in a file)"
        )
    seen: set[str] = set()
    for name, _ in request.candidates:
        candidate_name(name)
        if _TAKEN.fullmatch(name.lower()):
            raise PlanError(f"candidates: {name!r} names another model of every run; rename it")
        if name in seen:
            raise PlanError(f"candidates: {name!r} is named twice; each needs a name of its own")
        seen.add(name)
    if request.chunks > request.steps:
        if "chunks" in given:
            raise PlanError(
                f"chunks: {request.chunks} found; expected at most {request.steps}, the steps of "
                "re-acquisition"
            )
        raise PlanError(
            f"steps: {request.steps} found; expected at least {request.chunks}, because "
            f"re-acquisition is measured after each of {request.chunks} chunks"
        )
    if request.probes is not None and request.generate_probes:
        raise PlanError("probes and generate_probes: both given; expected one of them")
    if len(request.out) > 4000:
        raise PlanError("out: is not a path; give a folder for the run")
    for key in ("forget", "retain", "probes"):
        file = getattr(request, key)
        if file is not None and file.lower().endswith(".csv"):
            name = shown_path(file)
            raise PlanError(
                f"{key}: {name} found; expected facts as .jsonl, .json or .parquet; convert it "
                f"with `palimpsest facts from-csv {name} --out {name[:-4]}.jsonl`"
            )
    request.plan()
    check_device(request.device)
    check_lora(request.lora)


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _text(key: str, value: Any) -> str:
    value = _plain(value)
    if not isinstance(value, str) or not value.strip():
        raise PlanError(f"{key}: {shown(repr(value))} found; expected text that is not empty")
    if "\0" in value:
        raise PlanError(f"{key}: {shown(value)} found; a path holds no NUL character")
    return value


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Return names and places from a mapping or from ``NAME=PATH`` texts."""
    if isinstance(value, Mapping):
        return [
            (_text("candidates", name), _text(f"candidates.{name}", place))
            for name, place in value.items()
        ]
    if not isinstance(value, list | tuple):
        raise PlanError(f"candidates: {shown(repr(value))} found; expected a list")
    pairs = []
    for text in value:
        name, sign, place = _text("candidates", text).partition("=")
        if not (sign and name and place):
            raise PlanError(f"candidates: {shown(text)} found; expected NAME=PATH")
        pairs.append((name, place))
    return pairs


def _add_folders(given: dict[str, Any], folder: Path | None) -> None:
    """Add the checkpoints of the given folders to the candidates and the references."""
    left_out: list[tuple[str, str]] = []

    def models() -> dict[str, str]:
        places = {f"candidate {name}": place for name, place in given["candidates"]}
        references = given.get("references", ())
        places |= {f"reference {n + 1}": place for n, place in enumerate(references)}
        return places | {key: given[key] for key in _MODELS[::-1] if key in given}

    if "references_folder" in given:
        found, others = checkpoints_in(given.pop("references_folder"), models())
        given["references"] = (*given["references"], *(checkpoint.path for checkpoint in found))
        left_out += others
    if "candidates_folder" in given:
        found, others = checkpoints_in(given.pop("candidates_folder"), models())
        for checkpoint in found:
            try:
                candidate_name(checkpoint.name)
            except InputError as error:
                place = shown_path(checkpoint.path)
                raise PlanError(
                    f"{place}: {error}; name it with --candidate NAME={place}"
                ) from error
        given["candidates"] += tuple((checkpoint.name, checkpoint.path) for checkpoint in found)
        given["notes"] = tuple((one.name, one.notes) for one in found if one.notes)
        left_out += others
    given["left_out"] = tuple(left_out)


def _from(folder: Path | None, path: str) -> str:
    text = os.path.expanduser(path)
    return text if folder is None else str(folder / text)


def _model(folder: Path | None, name: str) -> str:
    """Return a model's place: a path from the folder if something is there, else as written."""
    if folder is None or Path(name).is_absolute() or len(name) > 4000:
        return name
    there = folder / os.path.expanduser(name)
    return str(there) if os.path.exists(there) else name


def _absolute(key: str, place: str) -> str:
    if key in (*_FILES, *_FOLDERS):
        return place if key == "general" and place == POCKET else os.path.abspath(place)
    return os.path.abspath(place) if os.path.exists(place) else place
