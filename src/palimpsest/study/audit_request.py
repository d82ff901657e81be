"""What a user asks of an audit, the same from flags, a YAML file or Python.

Every way in ends in ``make_request``, which takes plain values, refuses what it does not know by
name and gives one frozen ``AuditRequest``. Paths in a YAML file are read from the file's own
folder. Nothing here opens a model or a facts file.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from palimpsest.criteria.rules import Rules
from palimpsest.errors import PlanError
from palimpsest.facts.general import POCKET
from palimpsest.facts.names import candidate_name, shown
from palimpsest.plan import Plan, plan_from_dict
from palimpsest.study.audit_folder import Found, candidates_from_folder

ROUND_TRIPS = ("survivors", "all")
_FILES = ("forget", "retain", "probes", "general", "out", "candidates_folder")
_MODELS = ("base", "injected", "adapter_base")
_NEEDED = ("base", "injected", "forget", "retain", "general", "out")
_FOUND = frozenset({"notes", "left_out"})
"""What a request holds that nobody gives: it is found in the folder of candidates."""
_KNOBS: Mapping[str, tuple[str, ...]] = {
    "round_trip": ("steps", "chunks", "learning_rate", "items"),
    "general": ("scored_pieces", "piece_tokens"),
    "engine": ("device", "dtype", "batch_tokens"),
}
"""Where the plan keeps the knobs of an audit."""


@dataclass(frozen=True)
class AuditRequest:
    """One audit: which models and files, and every knob that can change a number."""

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
    generate_probes: int = 0
    """How many matched nonce probes to make when no file of probes is given."""
    references: tuple[str, ...] = ()
    adapter_base: str | None = None
    """The model under LoRA candidates, where their own config does not name it."""
    round_trip: str = "survivors"
    rules: Rules = field(default_factory=Rules)
    steps: int = 75
    chunks: int = 5
    learning_rate: float = 2e-5
    items: int = 4
    """The dose of re-acquisition: it should be the one the forget set was first learned with."""
    scored_pieces: int = 24
    piece_tokens: int = 28
    device: str = "cpu"
    dtype: str = "float32"
    batch_tokens: int = 8192
    notes: tuple[tuple[str, str], ...] = ()
    """What another toolkit said of a candidate, as JSON text; kept in the summary, never used."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Sub-folders of ``candidates_folder`` that are no candidates, and as what they were given."""

    def plan(self) -> Plan:
        """Give the knobs as a checked plan, of which an audit is one cell."""
        knobs = {
            part: {name: getattr(self, name) for name in names} for part, names in _KNOBS.items()
        }
        knobs["general"]["source"] = self.general
        rules = asdict(self.rules)
        try:
            return plan_from_dict(
                {"name": "audit", "models": ["audit"], "seeds": [0], "rules": rules, **knobs}
            )
        except PlanError as error:
            words = str(error)
            for part in _KNOBS:
                words = words.removeprefix(f"{part}.")
            raise PlanError(words) from error

    @property
    def dose(self) -> str:
        """Give the dose of re-acquisition in words."""
        return f"{self.steps} steps of {self.items} items at learning rate {self.learning_rate:g}"

    @property
    def default_dose(self) -> bool:
        """Tell whether that dose is the default, which knows nothing of the injected model's."""
        return all(
            getattr(self, item.name) == item.default
            for item in fields(self)
            if item.name in ("steps", "items", "learning_rate")
        )

    @property
    def reference_names(self) -> tuple[str, ...]:
        """Give the tables' names of the reference draws."""
        return tuple(
            "reference" if draw == 0 else f"reference-{draw}"
            for draw in range(len(self.references))
        )


def make_request(values: Mapping[str, Any], folder: Path | None = None) -> AuditRequest:
    """Give the request these plain values describe; PlanError names the key that is wrong.

    ``folder`` is where relative paths start, by default the current folder.
    """
    known = {item.name for item in fields(AuditRequest)} - _FOUND | {"candidates_folder"}
    given = {key: value for key, value in values.items() if value is not None}
    for key in values:
        if key not in known:
            raise PlanError(
                f"{shown(str(key))}: unknown key of an audit; known are {', '.join(sorted(known))}"
            )
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        raise PlanError(
            f"{missing[0]}: missing; an audit needs {', '.join(f'--{key}' for key in _NEEDED)}, "
            "--candidate or --candidates-folder, and --probes or --generate-probes (in a file the "
            "same without dashes, and candidates, candidates_folder, generate_probes)"
        )
    plain: dict[str, Any] = {}
    for item in fields(AuditRequest):
        if item.name in given and item.name not in _FOUND | {"candidates", "references", "rules"}:
            kind = "int" if item.type is int else "float" if item.type is float else "str"
            plain[item.name] = _scalar(item.name, given[item.name], kind)
    for key in _FILES:
        if key in plain and not (key == "general" and plain[key] == POCKET):
            plain[key] = _from(folder, plain[key])
    for key in _MODELS:
        if key in plain:
            plain[key] = _model(folder, plain[key])
    plain["references"] = tuple(
        _model(folder, _scalar(f"references[{n}]", one, "str"))
        for n, one in enumerate(_list("references", given.get("references", ())))
    )
    named = [(name, _model(folder, place)) for name, place in _candidates(given)]
    found, plain["left_out"] = _found(given, folder, _given(plain, named))
    plain["candidates"] = tuple(named + [(one.name, one.path) for one in found])
    plain["notes"] = tuple((one.name, one.notes) for one in found if one.notes)
    plain["rules"] = _rules(given.get("rules"))
    request = AuditRequest(**plain)
    _check(request)
    return request


def request_from_yaml(path: Path | str, over: Mapping[str, Any] | None = None) -> AuditRequest:
    """Give the request in a YAML file; ``over`` are flags, which go before the file's values."""
    path = Path(path)
    values = _read_yaml(path)
    request_keys = {key: value for key, value in (over or {}).items() if value is not None}
    # A flag's paths start where the command was given, the file's where the file is.
    for key in (*_FILES, *_MODELS):
        if isinstance(request_keys.get(key), str | os.PathLike):
            request_keys[key] = _absolute(key, os.fspath(request_keys[key]))
    if "references" in request_keys:
        request_keys["references"] = [
            _absolute("references", os.fspath(one)) for one in request_keys["references"]
        ]
    if "candidates" in request_keys:
        request_keys["candidates"] = {
            name: _absolute("candidates", place)
            for name, place in _candidates({"candidates": request_keys["candidates"]})
        }
    if {"probes", "generate_probes"} & request_keys.keys():
        values.pop("probes", None)
        values.pop("generate_probes", None)
    return make_request({**values, **request_keys}, path.resolve().parent)


def _check(request: AuditRequest) -> None:
    if not request.candidates:
        raise PlanError(
            "candidates: none given; name at least one with --candidate NAME=PATH, or a folder of "
            "them with --candidates-folder (candidates, candidates_folder in a file)"
        )
    seen: set[str] = set()
    for name, _ in request.candidates:
        candidate_name(name)
        if name in seen:
            raise PlanError(f"candidates: {name!r} is named twice; each needs a name of its own")
        seen.add(name)
    if request.round_trip not in ROUND_TRIPS:
        raise PlanError(
            f"round_trip: {request.round_trip!r} found; expected one of {', '.join(ROUND_TRIPS)}"
        )
    if request.generate_probes < 0:
        raise PlanError(f"generate_probes: {request.generate_probes} found; expected 0 or more")
    if request.probes is not None and request.generate_probes:
        raise PlanError(
            "probes and generate_probes: both given; expected one of them, since a verdict "
            "compares the forget set with one set of probes"
        )
    if len(request.out) > 4000 or "\0" in request.out:
        raise PlanError("out: is not a path; give a folder for the run")
    request.plan()


def _scalar(key: str, value: Any, kind: str) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind == "str":
        if not isinstance(value, str) or not value.strip():
            raise PlanError(f"{key}: {shown(repr(value))} found; expected text that is not empty")
        if "\0" in value:
            raise PlanError(f"{key}: {shown(value)} found; a path holds no NUL character")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise PlanError(f"{key}: {shown(repr(value))} found; expected a number")
    try:
        # YAML reads 2e-5 as text: its floats need a dot.
        number = float(value)
    except (ValueError, OverflowError):
        raise PlanError(f"{key}: {shown(repr(value))} found; expected a number") from None
    if not math.isfinite(number) or (kind == "int" and number != int(number)):
        expected = "a whole number" if kind == "int" else "a finite number"
        raise PlanError(f"{key}: {shown(repr(value))} found; expected {expected}")
    return int(number) if kind == "int" else number


def _list(key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str | os.PathLike) or not isinstance(value, list | tuple):
        raise PlanError(f"{key}: {shown(repr(value))} found; expected a list")
    return value


def _candidates(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Give names and places from a mapping or from ``NAME=PATH`` texts."""
    value = given.get("candidates", {})
    if isinstance(value, Mapping):
        return [
            (_scalar("candidates", name, "str"), _scalar(f"candidates.{name}", place, "str"))
            for name, place in value.items()
        ]
    pairs = []
    for one in _list("candidates", value):
        name, sign, place = _scalar("candidates", one, "str").partition("=")
        if not (sign and name and place):
            raise PlanError(f"candidates: {shown(one)} found; expected NAME=PATH")
        pairs.append((name, place))
    return pairs


def _given(plain: Mapping[str, Any], named: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Give the places of the models that were named, by what they are."""
    given = {f"candidate {name}": place for name, place in named}
    given |= {f"reference {n + 1}": place for n, place in enumerate(plain["references"])}
    return given | {key: plain[key] for key in _MODELS[::-1] if key in plain}


def _found(
    given: Mapping[str, Any], folder: Path | None, models: Mapping[str, str]
) -> tuple[tuple[Found, ...], tuple[tuple[str, str], ...]]:
    if "candidates_folder" not in given:
        return (), ()
    place = _scalar("candidates_folder", given["candidates_folder"], "str")
    return candidates_from_folder(_from(folder, place), models)


def _rules(value: Any) -> Rules:
    if value is None or isinstance(value, Rules):
        return value or Rules()
    return plan_from_dict({"models": ["audit"], "rules": value}).rules


def _from(folder: Path | None, path: str) -> str:
    text = os.path.expanduser(path)
    return text if folder is None else str(folder / text)


def _model(folder: Path | None, name: str) -> str:
    """Give a model's place: a path from the folder if something lies there, else as written."""
    if folder is None or Path(name).is_absolute() or len(name) > 4000:
        return name
    there = folder / os.path.expanduser(name)
    return str(there) if os.path.exists(there) else name


def _absolute(key: str, place: str) -> str:
    if key in _FILES:
        return place if key == "general" and place == POCKET else os.path.abspath(place)
    return os.path.abspath(place) if os.path.exists(place) else place


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that occurs twice, of which YAML would silently keep the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    where = key.start_mark.line + 1
                    raise PlanError(f"{path} line {where}: the key {key.value!r} occurs twice")
                seen.add(key.value if isinstance(key.value, str) else id(key))
            return super().construct_mapping(node, deep)

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{path}: cannot be read ({error}); expected the YAML of an audit"
        ) from error
    try:
        data = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: is not YAML: {' '.join(str(error).split())[:400]}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PlanError(
            f"{path}: holds {type(data).__name__}; expected keys such as base, injected, candidates"
        )
    return data
