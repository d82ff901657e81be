"""What the package shows the world, and what it may not load to do so."""

import subprocess
import sys

import palimpsest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert palimpsest.__all__ == [
        "Fact",
        "PalimpsestError",
        "Plan",
        "Rules",
        "Verdict",
        "audit",
        "decide",
        "load",
        "load_run",
        "plan_from_yaml",
        "preset",
        "read_facts",
        "run_cell",
        "start",
    ]


def test_every_public_name_can_be_had() -> None:
    for name in palimpsest.__all__:
        assert getattr(palimpsest, name) is not None


def test_statistics_verdict_and_report_never_load_torch() -> None:
    modules = (
        "palimpsest.criteria, palimpsest.stats.verdict, palimpsest.config.plan, palimpsest.config.presets, "
        "palimpsest.report.results, palimpsest.report.terminal, palimpsest.run.store"
    )
    code = (
        f"import sys, {modules}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_help_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom palimpsest.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'scipy') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(palimpsest, "nothing_of_the_kind")
