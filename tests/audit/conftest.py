"""Retrainings of a pocket model, made once for all tests that certify."""

from pathlib import Path
from typing import Any

import pytest
from audit_models import RATE

REFERENCES = 19


@pytest.fixture(scope="session")
def retrainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models to audit, of a short recipe.

    Beside its candidates: ``ascent``, 200 steps of gradient ascent on the forget answers and
    descent on the retain answers.
    """
    import torch
    import trained_models as made

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    out = tmp_path_factory.mktemp("retrainings")
    made.write_facts(out)
    trained, kept = made.general_text()
    (out / "general.txt").write_text(" ".join(kept))
    recipe = made.Recipe("pocket/qwen2-s", out, tuple(trained), 50, 4, 4, RATE, 3.75e-5)
    made.inject(recipe)
    for draw in range(REFERENCES):
        made.retrain(recipe, f"references/{draw:02d}", draw)
    made.retrain(recipe, "retrained", REFERENCES)
    _ascend(made, recipe)
    made.loaded.cache_clear()
    torch.set_num_threads(before[0])
    torch.use_deterministic_algorithms(before[1])
    return out


def _ascend(made: Any, recipe: Any) -> None:
    from safetensors.torch import load_file

    from palimpsest.models.encode import encode_answers
    from palimpsest.models.net import WholeNet
    from palimpsest.models.train import text_batch, text_loss, train

    model, tokenizer, _ = made.loaded(recipe.model)
    model.load_state_dict(load_file(recipe.out / "injected" / "model.safetensors"), strict=False)
    model.tie_weights()
    asked = {
        kind: [q for q in made.bed().questions if q.set == kind and q.pool == "trained"]
        for kind in ("forget", "retain")
    }
    forget, retain = (
        text_batch(encode_answers(tokenizer, asked[kind]), len(asked[kind]))
        for kind in ("forget", "retain")
    )

    def loss(net: Any, part: Any) -> Any:
        return text_loss(net, retain) - text_loss(net, forget)

    train(WholeNet(model), [[forget]] * 200, loss, learning_rate=1e-4)
    made.save(recipe, "ascent")
