"""YAML is read as one mapping of bounded size, or refused in few words."""

import os
from pathlib import Path

import pytest

from palimpsest.errors import PlanError
from palimpsest.files import YAML_LIMIT, read_yaml


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
