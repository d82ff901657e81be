"""Text from elsewhere, made safe to show: in messages, on a terminal, in tables and as a name.

What a file, a model or a folder holds may carry escape sequences, or characters that change the
order of what stands beside them. Nothing else in the package escapes, shortens or quotes text;
HTML is escaped by the templates, LaTeX by the tables.
"""

import reprlib
import unicodedata

NAME_LIMIT = 100
"""Longest name, in characters; it also stays within the 255 bytes file systems allow."""
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxtuple, _short.maxdict = 3, 6, 6, 6
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: object, limit: int = 60) -> str:
    """Return any value for a message, on one line: quoted, escaped to ASCII and bounded."""
    if isinstance(value, str):
        cut = f"{value[:limit]!a}... ({len(value)} characters)"
        return ascii(value) if len(value) <= limit else cut
    try:
        return _short.repr(value).encode("ascii", "backslashreplace").decode()
    except ValueError:  # an int of more digits than Python writes
        return f"a huge {type(value).__name__}"


def shown_path(path: object) -> str:
    """Return a path for a message."""
    return escaped(str(path))


def escaped(text: str, keep: str = "") -> str:
    """Return the text with an escape for every character that a terminal could obey.

    keep: characters to leave as they are, such as line ends.
    """
    return "".join(
        sign if sign.isprintable() or sign in keep else ascii(sign)[1:-1] for sign in text
    )


def printable(text: str, instead: str = "�") -> str:
    """Return the text with another sign for every character that a terminal or parser could obey.

    For tables, pages and figures, where the width of a text matters more than what was replaced.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else instead for sign in text)


def shortened(text: str, most: int) -> str:
    """Return the printable text without its middle where it is too long: names differ at their
    ends."""
    text, head = printable(text), (most - 1) // 2
    return text if len(text) <= most else f"{text[:head]}…{text[-(most - 1 - head) :]}"


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no lone surrogates."""
    return text.encode("utf-8", "replace").decode() == text


def name_problem(name: str) -> str | None:
    """Return why a name is not safe, or None when it is.

    Safe means that it can be a file name on any system, a table cell and a word on a command line:
    letters, digits and ``. _ - + = @ # , ( )`` and spaces inside; no separators, no leading dot or
    dash, no control or invisible characters, NFC, bounded length.
    """
    why = ""
    if not name or len(name) > NAME_LIMIT or len(name.encode("utf-8", "surrogatepass")) > 255:
        why = f"expected 1 to {NAME_LIMIT} characters, at most 255 bytes"
    elif not all(sign.isalnum() or sign in "._-+=@#,() " for sign in name):
        why = "expected letters, digits and ._-+=@#,() only, so that a name can never be a path"
    elif name[0] in ".- " or name[-1] in ". ":
        why = "expected no dot, dash or space at the beginning, no dot or space at the end"
    elif not unicodedata.is_normalized("NFC", name):
        why = "expected composed letters (Unicode NFC); retype it"
    return f"{shown(name)} found; {why}" if why else None
