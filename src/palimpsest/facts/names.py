"""Names a stranger may give, fact ids and candidates, made safe for paths, tables and HTML."""

import re
import unicodedata

from palimpsest.errors import FactsError

NAME_LIMIT = 100
"""Longest name, in characters; it also stays within the 255 bytes file systems allow."""

MODEL_NAMES = frozenset({"base", "injected", "reference", "forget_only", "general_only"})
"""What the models of a cell are called in stored tables; no candidate may take such a name."""

_PUNCTUATION = frozenset("._-+=@#,() ")
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\Z", re.IGNORECASE
)


def shown(text: str, limit: int = 60) -> str:
    """Return the text quoted for an error message: escaped to ASCII and cut."""
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}... ({len(text)} characters)"


def kind(value: object) -> str:
    """Return what JSON calls the value's type."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def shown_path(path: object) -> str:
    """Return the path for an error message, escaped when it holds anything that could act there."""
    return str(path) if str(path).isprintable() else ascii(str(path))[1:-1]


def name_problem(name: object) -> str | None:
    """Return why a name is not safe, or None when it is.

    Safe means that it can be a file name on any system, a table cell and a word on a command line:
    letters, digits and ``. _ - + = @ # , ( )`` and spaces inside; no separators, no leading dot or
    dash, no device names of Windows, no control or invisible characters, NFC, bounded length.
    """
    if not isinstance(name, str):
        return f"is {kind(name)}; expected a string"
    if not name:
        return "is empty"
    if len(name) > NAME_LIMIT or len(name.encode("utf-8", "surrogatepass")) > 255:
        return f"is {shown(name, 20)}; at most {NAME_LIMIT} characters and 255 bytes are allowed"
    strange = next((c for c in name if not (c.isalnum() or c in _PUNCTUATION)), None)
    if strange is not None:
        return (
            f"is {shown(name)}, which holds {shown(strange)}; use letters, digits and "
            '"._-+=@#,()" only, so that a name can never be a path'
        )
    if name[0] in ".- " or name[-1] in ". ":
        return (
            f"is {shown(name)}; it must not start with a dot, dash or space, nor end with a dot "
            "or space"
        )
    if _DEVICES.match(name.split(".")[0].rstrip()):
        return f"is {shown(name)}, a device name on Windows; choose another"
    if not unicodedata.is_normalized("NFC", name):
        return f"is {shown(name)}, whose letters are not composed (Unicode NFC); retype it"
    return None


def candidate_name(name: str) -> str:
    """Return the name if a candidate may have it: safe, and not one the tables use already."""
    why = name_problem(name)
    if why is not None:
        raise FactsError(f"candidate name {why}")
    numbered = re.match(r"(reference|retraining|control)-[0-9]+\Z", name.lower())
    if name.lower() in MODEL_NAMES or numbered:
        raise FactsError(
            f"candidate name is {name!r}, the name of another model in every run; choose another"
        )
    return name
