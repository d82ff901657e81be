"""Judge models by the evaluation logs of OpenUnlearning alone."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from palimpsest.cli.options import MODELS, AsJson, app
from palimpsest.cli.output import answer


@app.command(group=MODELS)
def logs(
    *paths: Path,
    role: Annotated[list[str] | None, Parameter(negative=())] = None,
    score: str | None = None,
    anchor: str | None = None,
    csv: Path | None = None,
    page: Path | None = None,
    json: AsJson = False,
) -> None:
    """Judge unlearned models by OpenUnlearning's evaluation logs alone, without weights.

    Parameters
    ----------
    paths
        TOFU_EVAL.json or MUSE_EVAL.json files, or folders that contain such files.
    role
        Role of a model, as NAME=ROLE: pretrained, retrained, full or candidate. Repeatable.
    score
        Score to judge by: mia_min_k, mia_loss or mia_zlib. Default: the first that most logs have.
    anchor
        Model whose score is subtracted: pretrained, retrained or raw (none). Default: the first.
    csv
        CSV file to write a table with all levels to.
    page
        Folder to write a page with a figure into.
    """
    from palimpsest.openunlearning import logs as judge_logs
    from palimpsest.openunlearning.show import as_csv_file, as_json, as_text, render_page
    from palimpsest.run.files import make_folder, write_bytes

    roles = dict(text.rpartition("=")[::2] for text in role or ())
    report = judge_logs(paths, roles=roles, score=score, anchor=anchor)
    if csv:
        write_bytes(csv, as_csv_file(report).encode())
    if page:
        make_folder(page)
        write_bytes(page / "index.html", render_page(report).encode())
    answer(as_json(report) if json else as_text(report))
