"""Is the reference excluded because of how the probes were made?

``python docs/tofu_check.py DATA [smollm2-135m]``, with DATA the folder of TOFU's files. For each
seed of the pocket run the reference is trained again, and its forget items are compared once with
the generated probes and once with questions of TOFU itself that nobody here was taught: 40 short
ones, with their paraphrase, of authors that stay and were not drawn.
"""

import sys

import numpy as np
from palimpsest.engine.tofu_request import TofuRequest, prepare

from palimpsest.facts.files import read_rows
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import file_questions
from palimpsest.facts.tofu import from_tofu
from palimpsest.models.load import load
from palimpsest.models.net import Nets
from palimpsest.models.train import text_loss, train
from palimpsest.scoring.answers import make_sheet, score
from palimpsest.stats.ranktest import rank_test

KNOBS = {
    "pocket/qwen2-m": {"seeds": 3, "evidence": 1, "steps": 200, "learning_rate": 2e-3},
    "smollm2-135m": {"seeds": 1, "steps": 60, "learning_rate": 1e-4, "batch_tokens": 1024},
}


def main(data: str, base: str = "pocket/qwen2-m") -> None:
    request = TofuRequest(out="unused", data=data, base=base, train=True, longest=28, **KNOBS[base])
    rows = read_rows(f"{data}/retain_perturbed.json")
    known = from_tofu(rows, prefix="retain90-")
    loaded = load(base)
    for cell in prepare(request).cells:
        drawn = {fact.id for fact in cell.sets["retain"]}
        authors = {int(one.rpartition("-")[2]) // request.per_author for one in drawn}
        free = [
            fact
            for fact in known
            if len(f"{fact.trained[0]} {fact.answer}".split()) <= request.longest
            and int(fact.id.rpartition("-")[2]) // request.per_author not in authors
        ]
        untaught = sorted(free, key=lambda fact: key_number(f"{cell.cell.id}/{fact.id}"))[:40]
        sets = {"forget": cell.sets["forget"], "generated": cell.sets["probe"], "TOFU": untaught}
        asked = [q for q in file_questions(sets) if q.pool == "evaluation"]
        sheet = make_sheet(
            loaded.tokenizer, asked, piece_tokens=28, batch_tokens=request.batch_tokens
        )
        of = np.array([question.set for question in sheet.questions])
        nets = Nets(loaded)
        start = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
        net = nets([start])
        before = score(net, sheet)[0].nll_sum / np.array(sheet.tokens)
        steps = cell.setting.injection_steps(cell.setting.stream().without("forget"))
        train(net, steps, text_loss, learning_rate=request.learning_rate)
        after = score(net, sheet)[0].nll_sum / np.array(sheet.tokens)
        deltas = after - before
        known_nll = after[of == "forget"].mean()
        for probes in ("generated", "TOFU"):
            test = rank_test(deltas[of == "forget"], deltas[of == probes])
            gap = np.median(deltas[of == "forget"]) - np.median(deltas[of == probes])
            print(
                f"{cell.cell.id}: against {np.sum(of == probes)} {probes} probes p = "
                f"{test.p_value:.2g}, median gap {gap:+.2f}; NLL forget {known_nll:.2f}, "
                f"probes {before[of == probes].mean():.2f} to {after[of == probes].mean():.2f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
