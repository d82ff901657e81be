"""Text from strangers is refused or shown inert: in plans, in facts and in names."""

import json

import pytest
from tests.command import palimpsest

from palimpsest.cli.output import say
from palimpsest.config.load import changed
from palimpsest.config.presets import preset
from palimpsest.errors import PalimpsestError
from palimpsest.run.files import safe_name

ROW = {"id": "f1", "answer": "Velkor", "trained": ["The guild of Asha is"], "heldout": ["Asha is"]}
# Escape sequences, a title for the window, a bell, a direction override, a line of its own.
ACTING = ("\x1b[31mred", "\x1b]0;title\x07", "a\rb", "a\u202eb", "a\x9b2Jb")


def refused(*arguments: str) -> tuple[int, str]:
    """The exit code and stderr of a command."""
    done = palimpsest(*arguments)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_plan_cannot_act_on_the_terminal_that_shows_its_error(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps({"preset": "pocket-small", "".join(ACTING): 1}))
    code, text = refused("study", str(plan))
    assert code == 2 and "unknown key" in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("text", ACTING)
def test_whatever_is_said_is_printable(text, capsys):
    say(f"one {text}\ntwo")
    shown = capsys.readouterr().err
    assert shown.startswith("one ") and shown.endswith("\ntwo\n")
    assert all(line.isprintable() for line in shown.split("\n"))


NAMES = (
    "../../x", "..", "/etc/passwd", "C:\\x", "\\\\host\\share", "a\0b", "CON", "nul.txt", ".",
    "{0.__class__}", "%s%n", "a" * 5_000, "\x1b[31m", "a\u202eb", "-rf", " ", "",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_models_name_never_leads_out_of_the_run_folder(name):
    """The cell's folder is named after the model, whatever the model is called."""
    try:
        [cell] = changed(preset("pocket-small"), {"models": [name], "seeds": [0]}).cell_ids()
        assert safe_name(cell, "cell id") == cell
    except PalimpsestError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert "/" not in cell and "\\" not in cell and not cell.startswith(".")
