"""``python -m palimpsest.cli`` is the command ``palimpsest``."""

from palimpsest.cli import main

main()
