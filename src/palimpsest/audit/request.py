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
from palimpsest.models.device import check_lora
from palimpsest.plan import Computing, Engine, General, Plan, RoundTrip, check
from palimpsest.schema import build, read_yaml, unknown_key

LADDER = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
"""Learning rates of re-acquisition that are tried on a reference where none is given."""
_FILES = ("forget", "retain", "probes", "general", "out")
_FOLDERS = ("candidates_folder", "references_folder")
_MODELS = ("base", "injected", "adapter_base")
_NEEDED = ("base", "injected", "forget", "retain", "general", "out")
_TAKEN = re.compile(r"(control|retraining)-\d[\d.]*|general_only")
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class AuditRequest(Computing):
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
    beacon: str = ""
    """Text from which schedule, held-out phrasings and generated probes are drawn."""
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
                engine=Engine.of(self),
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


def make_request(values: Mapping[str, Any]) -> AuditRequest:
    """Return the checked request that plain values describe."""
    return _request(_located(values))


def request_from_yaml(path: Path | str, over: Mapping[str, Any] | None = None) -> AuditRequest:
    """Return the request in a YAML file; ``over`` are flags, which win over the file's values.

    Paths in the file start at the file's folder, a flag's at the working directory.
    """
    path = Path(path)
    read = read_yaml(path, "keys such as base, injected, candidates")
    values, flags = _located(read, path.resolve().parent), _located(over or {})
    if {"probes", "generate_probes"} & flags.keys():
        values.pop("probes", None)
        values.pop("generate_probes", None)
    if "rules" in flags and isinstance(values.get("rules"), dict):
        flags["rules"] = values["rules"] | flags["rules"]
    return _request(values | flags)


def _located(values: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the values that were given, paths of files and models beginning at the folder."""
    given = {key: _plain(value) for key, value in values.items() if value is not None}
    for key in (*_FILES, *_FOLDERS):
        if key in given and not (key == "general" and given[key] == POCKET):
            given[key] = _from(folder, _text(key, given[key]))
    for key in _MODELS:
        if key in given:
            given[key] = _model(folder, _text(key, given[key]))
    references = given.get("references")
    if isinstance(references, list | tuple):
        given["references"] = tuple(
            _model(folder, _text(f"references[{n}]", place)) for n, place in enumerate(references)
        )
    if "candidates" in given:
        pairs = _pairs(given["candidates"])
        given["candidates"] = tuple((name, _model(folder, place)) for name, place in pairs)
    return given


def _request(given: dict[str, Any]) -> AuditRequest:
    known = {item.name for item in fields(AuditRequest)} - {"notes", "left_out"}
    for key in given:
        if key not in known | set(_FOLDERS):
            names = sorted(known | set(_FOLDERS))
            raise PlanError(unknown_key(shown(str(key))[1:-1], str(key), names))
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        raise PlanError(
            f"{missing[0]}: missing; an audit needs {', '.join(f'--{key}' for key in _NEEDED)}, "
            "--candidate or --candidates-folder, and --probes or --generate-probes (in a file the "
            "same without dashes, and candidates, candidates_folder, generate_probes)"
        )
    given = {"candidates": (), **given}
    _add_folders(given)
    request = build(AuditRequest, given)
    _check(request)
    return request


def _check(request: AuditRequest) -> None:
    if not request.candidates:
        raise PlanError(
            "candidates: none given; name at least one with --candidate NAME=PATH, or a folder of "
            "them with --candidates-folder (candidates, candidates_folder in a file)"
        )
    seen: set[str] = set()
    for name, _ in request.candidates:
        candidate_name(name)
        if _TAKEN.fullmatch(name.lower()):
            raise PlanError(
                f"candidates: {name!r} is the name of another model in every run; rename it"
            )
        if name in seen:
            raise PlanError(f"candidates: {name!r} is named twice; each needs a name of its own")
        seen.add(name)
    check_chunks(request.chunks, request.steps, "steps")
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
    check_lora(request.lora)


def check_chunks(chunks: int, steps: int, key: str) -> None:
    """Refuse more chunks of re-acquisition than it has steps; ``key`` names the steps."""
    if chunks > steps and chunks != RoundTrip.chunks:
        raise PlanError(
            f"chunks: {chunks} found; expected at most {steps}, the steps of re-acquisition"
        )
    if chunks > steps:
        raise PlanError(
            f"{key}: {steps} found; expected at least {chunks}, because re-acquisition is measured "
            f"after each of {chunks} chunks"
        )


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


def _add_folders(given: dict[str, Any]) -> None:
    """Add the checkpoints of the given folders to the candidates and the references."""
    left_out: list[tuple[str, str]] = []

    def models() -> dict[str, str]:
        places = {f"candidate {name}": place for name, place in given["candidates"]}
        references = given.get("references", ())
        places |= {f"reference {n + 1}": place for n, place in enumerate(references)}
        return places | {key: given[key] for key in _MODELS[::-1] if key in given}

    if "references_folder" in given:
        found, others = checkpoints_in(given.pop("references_folder"), models())
        given["references"] = (
            *given.get("references", ()),
            *(checkpoint.path for checkpoint in found),
        )
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
        given["notes"] = tuple((each.name, each.notes) for each in found if each.notes)
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
