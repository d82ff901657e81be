"""The words of one verdict's page, kept beside this file; run it to write them anew."""

import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden_verdict.txt")


class Parsed(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict_words(page: Path) -> str:
    """What a reader of a verdict's page sees, from its headline to the verdict in full, without the
    numbers of the picture."""
    source = page.read_text()
    shown = source[source.index("<header>") : source.index('<section id="candidates"')]
    shown = re.sub('<div class="strips".*?<p class="legend">', "", shown, flags=re.DOTALL)
    lines = (" ".join(line.split()) for line in Parsed(shown).text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    from tests.made_runs import cell_run

    from palimpsest.report.page import write_report
    from palimpsest.report.results import read_run

    run = cell_run(Path(tempfile.mkdtemp()) / "cell")
    GOLDEN.write_text(verdict_words(write_report(read_run(run))))
