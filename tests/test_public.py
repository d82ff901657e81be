"""What the package shows the world, and what it may not load to do so."""

import subprocess
import sys

import palimpsest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these_and_can_be_had():
    assert palimpsest.__all__ == [
        *("Answer", "Fact", "GradientMethod", "Knobs", "PalimpsestError", "Plan", "Rules"),
        *("Verdict", "audit", "certify", "compare", "decide", "facts", "load", "load_run", "logs"),
        *("plots", "read_facts", "retrain", "screen", "study", "unlearn", "verify"),
    ]
    for name in palimpsest.__all__:
        assert getattr(palimpsest, name) is not None
    assert set(palimpsest.__all__) < set(dir(palimpsest))
    assert not hasattr(palimpsest, "nothing_of_the_kind")


def test_statistics_verdict_and_report_never_load_torch():
    modules = (
        "palimpsest.stats.verdict, palimpsest.config.presets, "
        "palimpsest.report.results, palimpsest.report.terminal, palimpsest.run.store"
    )
    code = (
        f"import sys, {modules}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_help_loads_nothing_that_is_slow_to_import():
    code = (
        "import sys\nfrom palimpsest.cli import main\nsys.argv = ['palimpsest', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "slow = ('torch', 'transformers', 'numpy', 'pydantic', 'yaml')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    assert run(code).splitlines()[-1] == "[]"
