"""A TOFU study on a pocket model, small enough to be finished once per test process."""

import pytest
from tests.tofu.tofu_files import write_tofu

from palimpsest.config.commands import TofuConfig
from palimpsest.stats.rules import Rules


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TofuConfig:
    """Settings without fault: everything is trained here, on eight questions of each set."""
    root = tmp_path_factory.mktemp("tofu")
    return TofuConfig(
        out=str(root / "run"),
        data=str(write_tofu(root / "data", forget=2, retain=10)),
        base="pocket/qwen2-s",
        train=True,
        seeds=1,
        forget_items=8,
        retain_items=8,
        probes=12,
        methods=("npo",),
        draws=5,
        steps=60,
        learning_rate=2e-3,
        unlearning_steps=2,
        rules=Rules(control_shares=(0.25,)),
    )
