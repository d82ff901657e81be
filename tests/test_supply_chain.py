"""Few dependencies, each pinned and explained; nothing reaches for the network."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT, TRIALS = (
    tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for folder in (ROOT, ROOT / "trials")
)
NEEDED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["models"]]
PINNED = (ROOT / "constraints.txt").read_text().splitlines()

# Every import of the package, and what each command imports, with a hook that no library can undo.
IMPORT_ALL = """
import importlib, pkgutil, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        sys.stdout.write(f"{event} {arguments}\\n")
        raise RuntimeError(event)

sys.addaudithook(watch)
import palimpsest
names = [module.name for module in pkgutil.walk_packages(palimpsest.__path__, "palimpsest.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return canonical(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]


def test_every_dependency_is_pinned_to_one_version():
    lines = [line for line in PINNED if line and not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    assert all(re.fullmatch(r"[\w.+!-]+", version) for version in pins.values())
    named = [*PROJECT["dependencies"], *TRIALS["dependencies"]]
    named += TRIALS["optional-dependencies"]["gguf"]
    # No command here installs the hub's packages; a user who needs them chooses a version.
    for extra in ("models", "pandas", "dev", "peft", "ray"):
        named += PROJECT["optional-dependencies"][extra]
    ours = canonical(PROJECT["name"])
    missing = {name_of(one) for one in named} - {canonical(name) for name in pins} - {ours}
    assert not missing, f"constraints.txt does not pin {sorted(missing)}"


def closure(requirements: list[str]) -> set[str]:
    """Everything that is installed because of these, on this machine."""
    found: set[str] = set()
    waiting = [name_of(one) for one in requirements]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for one in metadata.requires(name) or []:
            if "extra ==" in one:
                continue
            try:
                metadata.version(name_of(one))
            except metadata.PackageNotFoundError:
                continue  # for another platform or Python
            waiting.append(name_of(one))
    return found


def test_what_the_dependencies_bring_along_is_pinned_too():
    pins = {canonical(line.split("==")[0]): line.split("==")[1] for line in PINNED if "==" in line}
    for name in sorted(closure(NEEDED)):
        assert name in pins, f"{name} is installed but not in constraints.txt"


def test_every_package_that_is_imported_is_a_dependency():
    declared = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    known = closure(NEEDED) | set(map(name_of, declared))
    provided = metadata.packages_distributions()
    for file in (ROOT / "src" / "palimpsest").rglob("*.py"):  # hydra_plugins is Hydra's to import
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {name.partition(".")[0] for name in names} - {"palimpsest"}
            for top in tops - sys.stdlib_module_names:
                assert known & {canonical(one) for one in provided.get(top, [top])}, (file, top)


def test_every_dependency_has_its_reason_in_the_documentation():
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## Dependencies") :].replace("*", "")
    for requirement in NEEDED:
        assert re.search(rf"\b{re.escape(name_of(requirement))}\b", table), requirement
    assert len(NEEDED) <= 16


def test_importing_every_module_opens_no_connection_and_looks_up_no_name():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_ALL],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "OMP_NUM_THREADS": "1", "HOME": "/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 100
