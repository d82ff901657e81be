"""README and docs name what is there: links, commands, flags, files, public names."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

import palimpsest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.glob("*.md")]
TITLES = [page.relative_to(ROOT).as_posix() for page in PAGES]
REPOSITORY = "https://github.com/palimpsest-audit/palimpsest/"
OTHERS = {"--head", "--port", "--data", "--seed", "--out", "--help"}
"""Flags of other programs in the docs: of ray, and of a trainer of the user's."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text()):
        target = "".join(link)
        if target.startswith(REPOSITORY):
            target = re.sub(r"^(blob|tree)/main/", "", target.removeprefix(REPOSITORY))
            file, _, anchor = target.partition("#")
            place = ROOT / file
        elif "://" in target:
            continue
        else:
            file, _, anchor = target.partition("#")
            place = page.parent / file if file else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_the_site_has_every_page_once():
    groups = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert [next(iter(group)) for group in groups] == [
        "Start", "Use", "Understand", "Reference", "Develop",
    ]  # fmt: skip
    named = [
        file for group in groups for entry in next(iter(group.values())) for file in entry.values()
    ]
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))


@cache
def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "palimpsest", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, words
    return done.stdout


def commands(text: str) -> list[list[str]]:
    """Return the words of every command line of palimpsest in a page's code."""
    code = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    lines = [line for part in code for line in part.replace("\\\n", " ").splitlines()]
    return [
        line.partition("#")[0].split("palimpsest ", 1)[1].split()
        for line in lines
        if re.match(r"(?:\S+[$>] *|RAY_ADDRESS=\S+ )*palimpsest [a-z]", line.strip())
    ]


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_commands_and_their_flags_exist(page):
    for words in commands(page.read_text()):
        name = words[:2] if words[0] == "facts" and len(words) > 1 else words[:1]
        known = help_of(*name)
        for word in words:
            flag = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][a-z-]*", flag) and flag not in OTHERS:
                assert flag in known, f"{' '.join(name)}: {flag}"


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_flags_named_alone_exist(page):
    every = " ".join(help_of(name) for name in names_of_commands())
    every += " ".join(help_of("facts", name) for name in names_of_commands("facts"))
    for flag in re.findall(r"`(--[a-z][a-z-]*)", page.read_text()):
        assert flag in every or flag in OTHERS, flag


def names_of_commands(*group: str) -> list[str]:
    return re.findall(r"^│ ([a-z][a-z-]*) {2,}[A-Z]", help_of(*group), re.MULTILINE)


def test_every_command_is_in_the_reference():
    text = (DOCS / "commands.md").read_text()
    names = names_of_commands()
    assert len(names) > 10 and not [name for name in names if f"`{name}`" not in text]


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_files_of_the_repository_exist(page):
    top = "tests|examples|benchmarks|trials|results|dev|docs|src"
    for path in re.findall(rf"`((?:{top})/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), path


def test_files_of_the_paper_map_exist():
    text = (DOCS / "paper.md").read_text()
    package = ROOT / "src" / "palimpsest"
    for folder, first, rest in re.findall(r"`([a-z]+)/(\w+\.py)?`((?:,\s+`\w+\.py`)*)", text):
        for name in filter(None, [first, *re.findall(r"`(\w+\.py)`", rest)]):
            assert (package / folder / name).exists(), f"{folder}/{name}"


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text()
    assert not [name for name in palimpsest.__all__ if not re.search(rf"\b{name}\b", text)]


def test_the_tree_of_the_readme_is_the_tree():
    tree = (ROOT / "README.md").read_text().partition("## The tree")[2]
    shown = set(re.findall(r"^  ([a-z]+)/ ", tree, re.MULTILINE))
    package = ROOT / "src" / "palimpsest"
    assert shown == {file.parent.name for file in package.glob("*/__init__.py")}
    for folder in re.findall(r"^([a-z]+)/", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_every_reason_is_explained():
    from palimpsest.stats.verdict import Because, Reason

    text = (DOCS / "read-a-verdict.md").read_text()
    assert not [reason for reason in Reason if f"### {reason}\n" not in text]
    assert not [cause for cause in Because if f"`{cause}`" not in text]
