"""Names a stranger may give, fact ids and candidates, made safe for paths, tables and HTML."""

import re
import unicodedata

from palimpsest.errors import FactsError

NAME_LIMIT = 100
"""Longest name, in characters; it also stays within the 255 bytes file systems allow."""

_DEVICES = r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\Z"
_MODELS = r"(base|injected|(forget|general)_only|reference|(reference|retraining|control)-[0-9]+)\Z"
"""What the models of a cell are called in stored tables; no candidate may take such a name."""


def shown(text: str, limit: int = 60) -> str:
    """Return the text quoted for an error message: escaped to ASCII and cut."""
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}... ({len(text)} characters)"


def shown_path(path: object) -> str:
    """Return the path for an error message, escaped when it holds anything that could act there."""
    return str(path) if str(path).isprintable() else ascii(str(path))[1:-1]


def name_problem(name: str) -> str | None:
    """Return why a name is not safe, or None when it is.

    Safe means that it can be a file name on any system, a table cell and a word on a command line:
    letters, digits and ``. _ - + = @ # , ( )`` and spaces inside; no separators, no leading dot or
    dash, no device names of Windows, no control or invisible characters, NFC, bounded length.
    """
    why = ""
    if not name or len(name) > NAME_LIMIT or len(name.encode("utf-8", "surrogatepass")) > 255:
        why = f"expected 1 to {NAME_LIMIT} characters, at most 255 bytes"
    elif not all(sign.isalnum() or sign in "._-+=@#,() " for sign in name):
        why = "expected letters, digits and ._-+=@#,() only, so that a name can never be a path"
    elif name[0] in ".- " or name[-1] in ". ":
        why = "expected no dot, dash or space at the beginning, no dot or space at the end"
    elif re.match(_DEVICES, name.split(".")[0].rstrip(), re.IGNORECASE):
        why = "expected another than a device name of Windows"
    elif not unicodedata.is_normalized("NFC", name):
        why = "expected composed letters (Unicode NFC); retype it"
    return f"{shown(name)} found; {why}" if why else None


def candidate_name(name: str) -> str:
    """Return the name if a candidate may have it: safe, and not one the tables use already."""
    why = name_problem(name)
    if why is None and re.match(_MODELS, name, re.IGNORECASE):
        why = f"{name!r} found, the name of another model in every run; choose another"
    if why is not None:
        raise FactsError(f"candidate name: {why}")
    return name
