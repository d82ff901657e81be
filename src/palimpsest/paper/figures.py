"""The paper's figure: trained-probe KL against forgetting, all candidates pooled."""

import numpy as np

from palimpsest.paper.bars import paper_references
from palimpsest.paper.study import read_paper
from palimpsest.paper.tables import methods_table
from palimpsest.report import canvas
from palimpsest.report.results import RunResults


@canvas.figure()
def diagnostic(results: RunResults) -> canvas.Picture | None:
    """Return oracle-KL against held-out forget NLL, every candidate of every cell by method."""
    study = read_paper(results)
    if study is None:
        return None
    styles = canvas.method_styles(results.methods)
    entries = [canvas.key(style, method) for method, style in styles.items()]
    figure, (axes,) = canvas.sheet((5.6, 3.6), entries, left=0.8)
    for method, mine in study.by_method().items():
        models = [cell.evaluation[name] for cell, name in mine]
        where = [(model.forget_nll, model.need("oracle_kl")) for model in models]
        canvas.points(axes, where, styles[method], size=4 if len(study.candidates()) > 100 else 5)
    levels = [
        cell.evaluation[paper_references(cell.evaluation)[0]].forget_nll for cell in study.cells
    ]
    axes.axvline(float(np.median(levels)), color=canvas.QUIET, linewidth=0.8, linestyle="--")
    canvas.bend(
        axes, [cell.evaluation[name].need("oracle_kl") for cell, name in study.candidates()], "y"
    )
    axes.grid(visible=True)
    axes.set_xlabel("held-out forget NLL, nats (dashed: the reference)")
    axes.set_ylabel("trained-probe KL to the reference, nats")
    about = (
        "Each marker is a candidate. Further right it forgets more; lower it answers trained "
        "questions more like the reference."
    )
    title = "Forgetting against closeness to the reference"
    return canvas.Picture("diagnostic", title, methods_table(study).reading, about, figure)
