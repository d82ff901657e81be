"""The application that commands register with: a command is one function in one file here."""

from cyclopts import App, Group

START = Group.create_ordered("Start here")
MODELS = Group.create_ordered("Your models")
BENCHMARKS = Group.create_ordered("Benchmarks and methods")
EVIDENCE = Group.create_ordered("Evidence")

app = App(
    name="palimpsest",
    help="Test whether a model that unlearned something was restored or only suppressed.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    help_format="plaintext",
    default_parameter=None,
)
