"""A whole audit in one file: load, score, re-acquire, screen, compare, decide.

``python examples/audit_by_hand.py FOLDER`` trains seven pocket models in FOLDER and audits two of
them. It says what ``palimpsest audit`` says of the same models (tests/test_examples.py). The
command also checks its inputs, resumes, looks for odd or copied references and for another recipe,
and writes a report.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

import palimpsest
from palimpsest.cell.beacon import Beacon
from palimpsest.cell.texts import used_questions
from palimpsest.config.sections import General, Reacquisition
from palimpsest.facts.general import deck, general_pieces
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import audit_questions, elicitations
from palimpsest.models.checkpoint import checkpoint_digests
from palimpsest.models.encode import encode_texts
from palimpsest.models.net import Nets
from palimpsest.models.train import text_batch
from palimpsest.scoring.answers import Sheet, general_questions, make_sheet, record, score
from palimpsest.scoring.reacquisition import in_curve, in_residual, reacquire, tensor_scales
from palimpsest.stats.axes import AXES
from palimpsest.stats.comparison import Comparison, compare, which_test
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.ranktest import rank_test
from palimpsest.stats.rules import CONTROL_MIXTURES, Rules
from palimpsest.stats.share import KNOWLEDGE

QUICK = Path(__file__).parent / "quick"
RULES = Rules()


@dataclass(frozen=True)
class Exam:
    """What every model is asked and taught, the same for all."""

    sheet: Sheet  # every question, and pieces of general text
    again: Sheet  # those asked again during re-acquisition: the first ones of ``sheet``
    backwards: Sheet  # the forget facts asked from the answer to the subject
    settings: Mapping[str, Any]  # of re-acquisition; its steps are trained forget sentences


def prepare(loaded: Any, digests: Any, files: Any, plan: Reacquisition, text: General) -> Exam:
    """Return the exam of an audit of models whose weights have these digests."""
    # A model could be trained to look right on known questions and a known schedule. Therefore half
    # of the held-out phrasings, and order, rate and optimizer of re-acquisition, follow from the
    # weights that are handed in (and from --beacon, a text published later, where one is given).
    drawn = Beacon("", digests)
    facts = {name: palimpsest.read_facts(path) for name, path in files.items()}
    prose = general_pieces(text.source, text.scored_pieces, "audit/general")
    questions = (*used_questions(audit_questions(facts), drawn), *general_questions(prose))
    others = elicitations(facts["forget"], facts["retain"])

    def sheet(some: list[Any]) -> Sheet:
        return make_sheet(loaded.tokenizer, some, piece_tokens=text.piece_tokens, batch_tokens=4096)

    again = sheet([q for q in questions if in_curve(q)])
    once = sheet([q for q in questions if not in_curve(q)])
    backwards = sheet([q for q in others if q.pool == "reversed"])
    taught = [q.sentence for q in questions if (q.set, q.pool) == ("forget", "trained")]
    texts = encode_texts(loaded.tokenizer, taught)
    order = deck(range(len(texts)), random.Random(key_number(drawn.key("reacquire"))))
    steps = ([texts[next(order)] for _ in range(plan.items)] for _ in range(plan.steps))
    settings = {
        "steps": [[text_batch(step, plan.items)] for step in steps],
        "chunks": plan.chunks,
        "learning_rate": plan.learning_rate * drawn.rate,
        "optimizer": drawn.optimizer,
        "base_scales": tensor_scales(loaded.weights),  # so that rescaled weights relearn alike
    }
    return Exam(again.followed_by(once), again, backwards, settings)


def measure(net: Any, exam: Exam, teacher: Any) -> dict[str, Any]:
    """Return a model's numbers in nats: one pass over the questions, then re-acquisition."""
    sheet, again, tokens = exam.sheet, exam.again, np.array(exam.sheet.tokens)
    (scores,), (back,) = score(net, sheet, injected=teacher), score(net, exam.backwards)
    before = [scores.first(len(again.questions))]
    (course,) = reacquire(net, sheet=again, injected=teacher, before=before, **exam.settings)
    nlls: dict[tuple[str, str], dict[str, list[float]]] = {}
    for question, nll in zip(sheet.questions, scores.nll_sum / tokens):
        nlls.setdefault((question.set, question.pool), {}).setdefault(question.fact, []).append(nll)
    by_fact = {key: np.array([np.mean(n) for n in facts.values()]) for key, facts in nlls.items()}
    prose = np.array([question.set == "general" for question in sheet.questions])
    first, middle, last = (course.curve[n] for n in (1, max(1, exam.settings["chunks"] // 2), -1))
    return {
        "forget nlls": by_fact["forget", "evaluation"],
        "probe nlls": by_fact["probe", "evaluation"],
        "retain": by_fact["retain", "cloze"].mean(),
        "general": scores.nll_sum[prose].sum() / tokens[prose].sum(),
        "residual": last.residual_retain + last.residual_general,
        "relearn_early": first.forget_heldout_nll,
        "relearn_mid": middle.forget_heldout_nll,
        "trained_mid": middle.forget_trained_nll,
        "retain_mid": middle.retain_nll,
        "reversed": -(back.nll_sum / np.array(exam.backwards.tokens)).mean(),
    }


def on_axes(model: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Return one number per axis: what a model is compared with retrainings on."""
    forget = model["forget nlls"] - base["forget nlls"]
    drift = np.median(model["probe nlls"] - base["probe nlls"])
    numbers = {**model, "forget": np.median(forget), "weakest": forget.min(), "drift": drift}
    return [float(numbers[axis.name]) for axis in AXES]


def screen(model: Mapping[str, Any], retrainings: Sequence[Mapping[str, Any]]) -> tuple[Any, float]:
    """Return the p-value of forget facts against probes, and their gap, relative to retrainings."""
    forget, probe = (
        model[key] - np.mean([other[key] for other in retrainings], axis=0)
        for key in ("forget nlls", "probe nlls")
    )
    return rank_test(forget, probe).exact_p, float(np.median(forget) - np.median(probe))


def audit_by_hand(
    models: Any, candidates: Any, references: Any, files: Any, plan: Reacquisition, text: General
) -> dict[str, Any]:
    """Return why nothing is certified (None if something is), who passes, and the p-values."""
    # All models share the base's architecture, so that each is a mapping of tensors.
    loaded = palimpsest.load(models["base"])
    paths = {f"reference-{Path(path).name}": path for path in references} | dict(candidates)
    digests = {name: checkpoint_digests(path).weights for name, path in paths.items()}
    states = {name: palimpsest.load(path).weights for name, path in {**paths, **models}.items()}
    names = [name for name in digests if name not in candidates]

    # Every model is measured alike. A mixture is a retraining with a tenth or a quarter of the
    # injected weights; the residual is the distance from what the injected model answers.
    net_of, exam = Nets(loaded, stack=1), prepare(loaded, digests, files, plan, text)
    teacher = record(net_of([states["injected"]]), exam.sheet, in_residual)
    found = {name: measure(net_of([state]), exam, teacher) for name, state in states.items()}
    mixtures: dict[float, dict[str, Any]] = {0.1: {}, 0.25: {}}
    for name in sorted(names, key=digests.__getitem__)[:CONTROL_MIXTURES]:
        for share, made in mixtures.items():
            pairs = {k: (states["injected"][k], own) for k, own in states[name].items()}
            mixed = {k: torch.lerp(*pair, 1.0 - share) for k, pair in pairs.items()}
            made[name] = measure(net_of([mixed]), exam, teacher)

    # Screen: a candidate is excluded if it is significant after Holm's correction, and its gap
    # lies where that of a further retraining lies in less than one case of a hundred.
    screened = {n: screen(found[n], [found[m] for m in names if m != n]) for n in digests}
    gaps = np.array([screened[name][1] for name in names])
    reach = stdtrit(len(gaps) - 1, 0.99) * np.sqrt(1 + 1 / len(gaps)) * gaps.std(ddof=1)
    lowest = min(gaps.min(), gaps.mean() - reach)
    significant = holm([screened[name][0] for name in candidates], RULES.alpha).rejected
    kept = [n for n, s in zip(candidates, significant) if not s or screened[n][1] >= lowest]

    # Compare: is a model one more draw of the references, on all axes together?
    table = {name: on_axes(model, found["base"]) for name, model in found.items()}
    rule = which_test(len(names), RULES.alpha)  # by rank from 20 references on, else normal

    def compared(values: list[float], without: str = "") -> Comparison:
        others = [table[name] for name in names if name != without]
        return compare(values, others, AXES, RULES, test=rule)

    results = {name: compared(table[name]) for name in candidates}
    passing = [name for name in kept if results[name].accepted]
    # The same test must reject the injected model and most mixtures with a quarter of its weights.
    tenth, quarter = (
        {name: on_axes(model, found["base"]) for name, model in mixtures[share].items()}
        for share in (0.1, 0.25)
    )
    noticed = [compared(values, name).rejected for name, values in quarter.items()]
    blind = not compared(table["injected"]).rejected or np.mean(noticed) < RULES.detection_power

    # Bound: a mixture of 10 % is the unit in which a model's distance from the mean reference is
    # read, on the axes that show knowledge; references say how far retrainings vary.
    shown = [[axis.name for axis in AXES].index(axis.name) for axis in KNOWLEDGE]
    draws = np.array([table[name] for name in names])[:, shown]
    moved = np.array([np.subtract(v, table[n])[shown] for n, v in tenth.items()]).mean(axis=0)
    moving = abs(moved) >= draws.std(axis=0, ddof=1)

    def reading(values: list[float]) -> float:
        apart = np.array(values)[shown] - draws.mean(axis=0)
        return float((0.1 * apart / moved)[moving].mean())

    spread = np.std([reading(table[name]) for name in names], ddof=1)
    width = float(stdtrit(len(names) - 1, 0.95) * spread * np.sqrt(1 + 1 / len(names)))
    bounds = {name: max(0.0, reading(table[name]) + width) for name in candidates}
    bounded = [name for name in passing if bounds[name] < RULES.most_left]

    # Decide: the first of these that holds is the reason.
    reasons = {"all_excluded": not kept, "underpowered": blind, "distinguishable": not passing}
    reasons["undecided"] = not bounded
    return {
        "reason": next((reason for reason, holds in reasons.items() if holds), None),
        "passing": passing,
        "at_most": bounds,  # share of the injected weights left, as long as it is below a tenth
        "p": {name: result.p for name, result in results.items()},
        "worst_axis": {name: result.worst.axis for name, result in results.items()},
        "screen_p": {name: float(screened[name][0]) for name in candidates},
    }


def main(folder: Path) -> None:
    """Audit the injected model itself and one retraining against five others, and print it."""
    torch.set_num_threads(1)  # for models this small, more threads only wait for each other
    files = {name: str(QUICK / f"{name}.jsonl") for name in ("forget", "retain", "probe")}
    models = {"base": "pocket/qwen2-s", "injected": str(folder / "models" / "injected")}
    if not (folder / "models").exists():
        palimpsest.retrain(
            base=models["base"], forget=files["forget"], retain=files["retain"], with_forget=True,
            general=str(QUICK / "train.txt"), draws=6, out=folder / "models",
        )  # fmt: skip
    *references, fresh = (str(folder / "models" / f"{n:02d}") for n in range(6))
    candidates = {"nothing-done": models["injected"], "retrained": fresh}
    text, plan = General(source=str(QUICK / "general.txt")), Reacquisition(learning_rate=1.5e-4)
    for key, value in audit_by_hand(models, candidates, references, files, plan, text).items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
