"""Side effects live where the architecture says: one place writes files, one place loads models."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "palimpsest"

WRITERS = {
    "run/files.py": "the store's own",
    "run/locks.py": "removes the name of a lock's owner",
    "cell/checkpoints.py": "builds a folder of models beside its place, then renames it",
    "cell/work.py": "the log of a training command of the user's",
}
OWN_WORKERS = ("run/local.py", "run/ray.py")
"""A command pickles its job for workers that it started itself, and reads no pickle of others."""
LOADERS = (
    "models/checkpoint.py",
    "models/tokenizer.py",
    "models/sources.py",
    "models/lora.py",
    "models/skeleton.py",
)


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def name_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def writes(call: ast.Call) -> bool:
    """Whether a call opens a path for writing behind the store's back."""
    name = name_of(call)
    if name in ("write_text", "save_pretrained", "touch", "mkdir", "rename", "unlink", "rmtree"):
        return True
    if name == "write_bytes":  # the store's own takes a path and the bytes
        return len(call.args) == 1
    if name == "open" and isinstance(call.func, ast.Name):
        mode = call.args[1] if len(call.args) > 1 else None
        descriptor = isinstance(call.args[0], ast.Call)  # a file the store is about to publish
        writing = isinstance(mode, ast.Constant) and any(sign in str(mode.value) for sign in "wax+")
        return writing and not descriptor
    return False


def modules() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_only_the_store_writes_files():
    found = {m: [c.lineno for c in calls(SOURCE / m) if writes(c)] for m in modules()}
    assert {module for module, lines in found.items() if lines} == set(WRITERS), found


def test_only_the_loader_loads_models():
    loading = {
        module
        for module in modules()
        if any(name_of(call) == "from_pretrained" for call in calls(SOURCE / module))
    }
    assert loading <= set(LOADERS)


def test_one_module_reads_tensors_and_one_their_headers():
    """So that whatever is read is hashed and checked, and can be counted."""
    for module in modules():
        names = {name_of(call) for call in calls(SOURCE / module)}
        assert not names & {"load_file", "get_tensor"}, module
        assert ("safe_open" in names) == (module == "models/vet.py"), module
        assert ("readinto" in names) == (module == "models/stored.py"), module


def test_nothing_trusts_remote_code_or_pickles():
    for module in modules():
        text = (SOURCE / module).read_text(encoding="utf-8")
        assert "trust_remote_code=True" not in text, module
        assert "weights_only=False" not in text, module
        assert ("import pickle" in text) == (module in OWN_WORKERS), module
