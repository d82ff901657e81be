"""Plain values become dataclasses, or a PlanError of bounded length that has the key."""

import copy
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge

from palimpsest.errors import PlanError
from palimpsest.files import YAML_LIMIT, read_yaml
from palimpsest.schema import build, unknown_key


@dataclass(frozen=True)
class Dose:
    steps: Annotated[int, Ge(1)] = 200


@dataclass(frozen=True)
class Request:
    out: str
    places: tuple[tuple[str, str], ...] = ()
    steps: int = 75
    rate: float = 0.5
    checked: bool = False
    kind: Literal["a", "b"] = "a"
    probes: str | None = None
    dose: Dose = field(default_factory=Dose)
    doses: tuple[Dose, ...] = ()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({}, "out"),
        ({"out": 3}, "out"),
        ({"out": "\ud800"}, "out"),
        ({"out": "o", "steps": True}, "steps"),
        ({"out": "o", "steps": "1.5"}, "steps"),
        ({"out": "o", "steps": 10**400}, "steps"),
        ({"out": "o", "rate": "nan"}, "rate"),
        ({"out": "o", "rate": 10**400}, "rate"),
        ({"out": "o", "rate": True}, "rate"),
        ({"out": "o", "checked": 1}, "checked"),
        ({"out": "o", "kind": "c"}, "kind"),
        ({"out": "o", "places": {"a": 1}}, "places[0][1]"),
        ({"out": "o", "places": {"a", "b"}}, "places"),
        ({"out": "o", "probes": []}, "probes"),
        ({"out": "o", "dose": 3}, "dose"),
        ({"out": "o", "dose": {"steps": 0}}, "dose.steps"),
        ({"out": "o", "doses": [{}, {"step": 1}]}, "doses[1].step"),
        ({"out": "o", "outt": 2}, "outt"),
        ({"out": "o", "\x1b[31m": 2}, "'\\x1b[31m'"),
        ([], "request"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(values: Any, key: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(Request, values)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ") and len(str(caught.value)) < 400
    with pytest.raises(PlanError) as caught:
        build(Request, values, "under")
    assert caught.value.key == ("under" if key == "request" else f"under.{key}")


def test_numbers_may_be_text_lists_tuples_and_mappings_pairs() -> None:
    values = {"out": "o", "places": {"a": "b"}, "steps": "1e2", "rate": "2e-5", "doses": [{}]}
    request = build(Request, values)
    assert request == Request("o", (("a", "b"),), 100, 2e-5, doses=(Dose(),))
    assert type(request.steps) is int and type(build(Request, {"out": "", "rate": 3}).rate) is float


def test_an_unknown_key_names_the_one_that_was_meant() -> None:
    error = unknown_key("rules.alfa", ["alpha", "draws"])
    assert error.key == "rules.alfa" and "did you mean alpha?" in str(error)
    assert len(unknown_key("x" * 10**6, ["alpha"]).key) < 100


def test_the_key_of_an_error_survives_a_copy_and_another_process() -> None:
    error = PlanError("is empty", key="models")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.key) == ("models: is empty", "models")
    assert PlanError("no key").key == ""


# YAML


def test_aliases_and_merges_of_ordinary_size_are_read() -> None:
    values = read_yaml("a: &x {k: 1}\nb: *x\nc: {<<: *x, j: 2}\n", "keys")
    assert values == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 1, "j": 2}}
    many = ", ".join(map(str, range(20_000)))
    assert len(read_yaml(f"seeds: [{many}]\n", "keys")["seeds"]) == 20_000


def bomb(last: str, links: list[str]) -> str:
    """YAML in which every name stands for several of the one before."""
    lines = [f"a0: &a0 {last}"]
    lines += [f"a{n}: &a{n} {link.format(*[f'*a{n - 1}'] * 9)}" for n, link in enumerate(links, 1)]
    return "\n".join(lines) + "\n"


NINE = ", ".join(["{}"] * 9)
BOMBS = {
    "lists": bomb("[x, x, x]", [f"[{NINE}]"] * 8),
    "merged keys": bomb("{x: 1}", [f"{{{{<<: [{NINE}]}}}}"] * 8),
    "nested keys": bomb("{x: 1}", ["{{p: {}, q: {}, r: {}}}"] * 18),
    "long text": bomb("x" * 100_000, [f"[{NINE}]"] * 3),
    "chain": bomb("[x]", ["[{}]"] * 2_000),
    "itself": "a: &a [*a]\n",
    "brackets": "a: " + "[" * 800,
    "deep": "a: " + "[" * 60 + "]" * 60 + "\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_few_lines_that_stand_for_gigabytes_are_refused_in_few(tmp_path: Path, name: str) -> None:
    (tmp_path / "plan.yaml").write_text(BOMBS[name])
    for source in (BOMBS[name], tmp_path / "plan.yaml"):
        with pytest.raises(PlanError) as caught:
            read_yaml(source, "keys")
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text",
    ["- a\n- b\n", "a: [\n", "\x00\n", "1: 2\n", "\n", "a: 1\nb: 2\na: 3\n", "a: 1\n---\nb: 2\n",
     "? [1]\n: 2\n", "a: !!python/object/apply:os.system [ls]\n", "a: 2020-99-99\n"],
)  # fmt: skip
def test_yaml_that_is_no_mapping_of_single_keys_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"^the text"):
        read_yaml(text, "keys")


def test_what_is_no_regular_file_of_ordinary_size_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (YAML_LIMIT + 1))
    for path in (tmp_path / "pipe", tmp_path / "large", tmp_path, Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(PlanError):
            read_yaml(path, "keys")
