"""An audit of checkpoints and files: one verdict by every way in, one model at a time."""

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from audit_models import PROBES, STEPS, checkpoints, fact, write_facts
from click.testing import Result
from typer.testing import CliRunner

from palimpsest.adversaries.registry import Unavailable
from palimpsest.cli import app
from palimpsest.engine import audit_job as job
from palimpsest.engine import audit_preview as preview
from palimpsest.engine import measure, sources
from palimpsest.engine.audit_request import make_request, request_from_yaml
from palimpsest.engine.audit_run import AuditFailed, AuditResult, audit, run_audit
from palimpsest.engine.folder import checkpoints_in
from palimpsest.engine.inputs import prepare
from palimpsest.errors import DriftError, FactsError, InputError
from palimpsest.facts.files import Fact, read_facts
from palimpsest.facts.probes import generated_probes
from palimpsest.facts.questions import audit_questions
from palimpsest.models.checkpoint import checkpoint_digests
from palimpsest.report.html import write_report
from palimpsest.report.results import read_run
from palimpsest.report.terminal import candidate_lines, summary_lines
from palimpsest.run.store import Run, table_from_bytes
from palimpsest.stats.axes import AXES

Values = dict[str, Any]


class Stop(Exception):
    """Thrown between two models, as a power cut would be."""


@pytest.fixture(scope="module")
def world(tiny_checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Values:  # type: ignore[no-untyped-def]
    """Files, and tiny models that learned them: one candidate is the injected model itself, the
    other never saw the forget set."""
    root = tmp_path_factory.mktemp("audit")
    facts = write_facts(root / "facts")
    made = checkpoints(tiny_checkpoint("qwen2-s"), root / "models", facts)
    return {
        **facts,
        **STEPS,
        "base": str(made["base"]),
        "injected": str(made["injected"]),
        "candidates": {"unchanged": str(made["unchanged"]), "retrained": str(made["retrained"])},
        "learning_rate": 1e-3,
        "round_trip": "all",
        "root": root,
        "made": made,
    }


def asked(world: Values, out: Path, **changes: Any) -> Values:
    values = {key: value for key, value in world.items() if key not in ("root", "made")}
    return values | {"out": str(out)} | changes


@pytest.fixture(scope="module")
def plain(world: Values, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audit(**asked(world, tmp_path_factory.mktemp("plain") / "run"))


@pytest.fixture(scope="module")
def replicated(world: Values, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    references = [str(world["made"][name]) for name in ("reference", "again")]
    out = tmp_path_factory.mktemp("replicated") / "run"
    return audit(**asked(world, out, references=references))


def items(run: Path) -> bytes:
    return (run / "cells" / "audit" / "items.parquet").read_bytes()


# -- what comes out ------------------------------------------------------------------------------


def test_the_injected_model_is_excluded_and_the_retrained_one_survives(plain: AuditResult) -> None:
    assert plain.verdict is not None and plain.verdict.reason == "no_reference"
    found = {one.name: one for one in plain.verdict.findings}
    assert found["unchanged"].excluded and found["unchanged"].p_value == pytest.approx(1 / 4845)
    assert not found["retrained"].excluded
    assert plain.exit_code == (0 if plain.verdict.certified else 3)


def test_by_default_only_survivors_go_through_the_round_trip(
    world: Values, plain: AuditResult, tmp_path: Path
) -> None:
    result = audit(**asked(world, tmp_path / "run", round_trip="survivors"))
    assert result.verdict is not None and plain.verdict is not None
    table = Run.open(tmp_path / "run").cell("audit").table("items")
    returned = set(table["model"][table["stage"] == "reacquired"])
    assert returned == {"base", "injected", "retrained"}
    spared = result.verdict.finding("unchanged")
    assert spared.values["residual"] is None and spared.failures == ("screen", "references")
    assert result.verdict.finding("retrained") == plain.verdict.finding("retrained")
    assert write_report(tmp_path / "run").exists()


def test_two_references_are_measured_and_do_not_certify(replicated: AuditResult) -> None:
    assert replicated.verdict is not None and replicated.run is not None
    assert replicated.verdict.reason == "no_reference" and replicated.exit_code == 3
    assert replicated.verdict.numbers["references"] == 2
    assert replicated.verdict.numbers["references_excluded"] == 0
    roles = Run.open(replicated.run).cell("audit").summary()["models"]
    assert [roles[name]["draw"] for name in ("reference", "reference-1")] == [0, 1]
    shares = {name: role["share"] for name, role in roles.items() if role["role"] == "control"}
    assert shares == {"control-50": 0.5, "control-25": 0.25, "control-10": 0.1, "control-5": 0.05}
    assert all(roles[name]["of"] == "reference" for name in shares)
    table = Run.open(replicated.run).cell("audit").table("items")
    trained = (table["set"] == "forget") & (table["pool"] == "trained")
    forward = trained & (table["stage"] == "forward")
    assert np.isfinite(table["kl_reference"][forward]).all()
    mine = forward & (table["model"] == "reference")
    assert np.abs(table["kl_reference"][mine]).max() < 1e-4


def test_the_run_folder_is_a_run_like_any_other(replicated: AuditResult) -> None:
    assert replicated.run is not None
    results = read_run(replicated.run)
    assert [cell.id for cell in results.cells] == ["audit"]
    assert results.cells[0].verdict == replicated.verdict
    assert replicated.paragraph in summary_lines(replicated.run)
    assert not Run.open(replicated.run).verify()
    assert write_report(replicated.run).exists()


def test_the_report_needs_no_reference(plain: AuditResult) -> None:
    assert plain.run is not None and write_report(plain.run).exists()


def test_summary_and_scores_say_the_same_as_the_verdict(replicated: AuditResult) -> None:
    assert replicated.run is not None and replicated.verdict is not None
    document = json.loads((replicated.run / "summary.json").read_text())
    assert document == json.loads(json.dumps(dict(replicated.summary)))
    assert document["format"] == "palimpsest-audit/2"
    assert document["candidate"] == replicated.verdict.candidate
    table = table_from_bytes((replicated.run / "scores.parquet").read_bytes(), "scores")
    given = [name for name, role in zip(table["model"], table["role"]) if role != "control"]
    assert given == list(document["models"]) and len(table["model"]) == len(given) + 4
    for name, found in document["candidates"].items():
        row = list(table["model"]).index(name)
        assert table["p_value"][row] == found["p_value"]
        assert table["clears"][row] == found["clears"]
        for axis in AXES:
            assert table[axis.name][row] == found["values"][axis.name]
            assert f"z_{axis.name}" in table
    injected = list(table["role"]).index("injected")
    assert table["excluded"][injected] and np.isnan(table["p"][injected])


# -- ways in -------------------------------------------------------------------------------------


def test_flags_yaml_and_python_give_the_same_bytes_and_verdict(
    world: Values, plain: AuditResult, tmp_path: Path
) -> None:
    values = asked(world, Path("run"))
    values["learning_rate"] = "1e-3"  # as YAML and a shell write it
    home = world["root"]
    relative = {
        key: str(Path(value).relative_to(home)) if str(value).startswith(str(home)) else value
        for key, value in values.items()
    }
    relative["candidates"] = {
        name: str(Path(place).relative_to(home)) for name, place in values["candidates"].items()
    }
    (home / "audit.yaml").write_text(yaml.safe_dump(relative, sort_keys=False))
    by_yaml = run_audit(request_from_yaml(home / "audit.yaml", {"out": str(tmp_path / "yaml")}))
    flags = asked(world, tmp_path / "flags")
    flags["candidates"] = [f"{name}={place}" for name, place in values["candidates"].items()]
    by_flags = run_audit(make_request(flags))
    assert plain.run is not None and by_yaml.run is not None and by_flags.run is not None
    assert items(by_yaml.run) == items(by_flags.run) == items(plain.run)
    assert by_yaml.verdict == by_flags.verdict == plain.verdict


def test_a_flag_goes_before_the_file(world: Values, tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(yaml.safe_dump(asked(world, tmp_path / "run", steps=9)))
    request = request_from_yaml(path, {"steps": 7, "probes": None, "generate_probes": 5})
    assert (request.steps, request.probes, request.generate_probes) == (7, None, 5)


def test_a_dry_run_reads_no_weights_and_writes_nothing(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    result = audit(**asked(world, tmp_path / "run"), dry_run=True)
    assert result.verdict is None and result.exit_code == 0
    for word in ("retrained (candidate, folder)", "sha256:", "88 questions", "GB", "time"):
        assert word in result.paragraph
    dose = "re-acquisition: 4 steps of 2 sentences at learning rate 0.001"
    assert dose in result.paragraph and "--items" in result.paragraph
    assert "remark: candidate unchanged has the weights of injected" in result.paragraph
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_which_dose_was_left_at_its_default_and_counts_start_up_and_report(
    world: Values, tmp_path: Path
) -> None:
    values = asked(world, tmp_path / "run")
    for key in ("steps", "items", "learning_rate"):
        del values[key]
    said = audit(**values, dry_run=True).paragraph
    assert "re-acquisition: 75 steps of 4 sentences at learning rate 2e-05" in said
    assert "time: roughly" in said and "references: 0, so no candidate" in said
    values["references"] = [str(world["made"][name]) for name in ("reference", "again")]
    said = audit(**values, dry_run=True).paragraph
    assert "at a learning rate that is chosen on a reference" in said
    quick = prepare(make_request(asked(world, tmp_path / "run", steps=1, chunks=1)))
    assert preview.seconds(quick) > preview.AROUND


# -- the command ---------------------------------------------------------------------------------


def command(world: Values, out: Path, *more: str, **changes: Any) -> Result:
    """Give what ``palimpsest audit`` ends with when it is asked by flags."""
    values = asked(world, out, **changes)
    file = out.with_suffix(".yaml")  # for what has no flag
    rest = {key: values.pop(key) for key in ("chunks", "scored_pieces", "piece_tokens")}
    file.write_text(yaml.safe_dump(rest))
    flags = [f"--candidate={name}={place}" for name, place in values.pop("candidates").items()]
    flags += [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
    flags += ["--executor=inline"]
    return CliRunner().invoke(app, ["audit", str(file), *flags, *more])


def test_the_command_shows_the_verdict_and_then_the_candidates(
    world: Values, tmp_path: Path
) -> None:
    done = command(world, tmp_path / "run", steps=5)
    assert done.exit_code in (0, 3), done.output
    title, *rows = candidate_lines(read_run(tmp_path / "run").cells[0]).splitlines()
    head, table = done.stdout.split(title, 1)
    assert head.startswith(("Certified", "Uncertified"))
    assert table.strip().startswith("\n".join(rows).strip())
    for word in ("residual", "unchanged", "retrained", "report: "):
        assert word in table
    steps = [line for line in done.stderr.splitlines() if line.startswith("audit: scoring")]
    assert steps == [
        "audit: scoring and re-acquiring base (0/4)",
        "audit: scoring and re-acquiring injected (1/4)",
        "audit: scoring and re-acquiring unchanged (2/4)",
        "audit: scoring and re-acquiring retrained (3/4)",
    ]
    assert "note: candidate unchanged has the weights of injected" in done.stderr
    ahead = command(world, tmp_path / "ahead", "--preview")
    assert "re-acquisition: 4 steps of 2 sentences" in ahead.stdout
    as_json = command(world, tmp_path / "run", "--json", steps=5)
    assert json.loads(as_json.stdout)["candidates"].keys() == {"unchanged", "retrained"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["`palimpsest audit -h`", "docs/audit-your-model.md"]),
        (["--base=b"], ["--injected: missing", "--candidates-folder", "--generate-probes"]),
        (["--candidate=audit/x"], ["--candidate: 'audit/x' found; expected NAME=PATH"]),
        (["--candidate=x=a", "--candidate=x=b"], ["--candidate: 'x' is named twice"]),
        ([], ["--candidate: none given", "--candidates-folder"]),
        (["--candidate=x=a", "--generate-probes=4"], ["--probes and --generate-probes: both"]),
        (["--candidate=x=a", "--learning-rate=-1"], ["--learning-rate: "]),
        (["--candidate=x=a", "--reference= "], ["--reference: ", "not empty"]),
        (["--candidate=x=a", "--steps=1"], ["--steps: 1 found", "at least 5"]),
        (["--candidate=x=a", "--device=cuda"], ["--device: cuda found", "no CUDA device"]),
        (["--candidate=x=a", "--alpha=2"], ["--alpha"]),
        (["--candidate=x=a", "--margin=-1"], ["--margin"]),
        (["--candidate=x=a", "--detection-limit=-1"], ["--detection-limit"]),
        (["--candidate=x=a", "--forget=f.csv"], ["--forget: f.csv", "facts from-csv f.csv"]),
    ],
)
def test_an_error_names_the_flag_it_came_from(
    world: Values, flags: list[str], words: list[str]
) -> None:
    needed = ("base", "injected", "forget", "retain", "probes", "general")
    whole = [f"--{key}={world[key]}" for key in needed] + ["--out=run"]
    alone = words[0].startswith(("`", "--injected"))
    failed = CliRunner().invoke(app, ["audit", *([] if alone else whole), *flags]).exception
    assert isinstance(failed, InputError)
    for word in words:
        assert word in str(failed)


def test_an_error_in_a_file_names_its_key_and_one_in_a_flag_beside_it_the_flag(
    world: Values, tmp_path: Path
) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(yaml.safe_dump(asked(world, tmp_path / "run", round_trip="some")))
    failed = CliRunner().invoke(app, ["audit", str(path)]).exception
    assert str(failed).startswith("round_trip: 'some' found")
    failed = CliRunner().invoke(app, ["audit", str(path), "--round-trip=none"]).exception
    assert str(failed).startswith("--round-trip: 'none' found")


# -- stopping early ------------------------------------------------------------------------------


def test_too_few_probes_end_it_before_any_model(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    few = tmp_path / "probes.jsonl"
    few.write_text("".join(json.dumps(fact("probe", n)) + "\n" for n in range(3)))
    result = audit(**asked(world, tmp_path / "run", probes=str(few)))
    assert result.verdict is not None and result.verdict.reason == "underpowered"
    assert result.exit_code == 3 and "at least 4 probes" in result.paragraph
    assert result.verdict.paragraph().startswith("Uncertified (underpowered)")
    assert not (tmp_path / "run").exists()


def test_inferable_facts_end_it_before_any_candidate(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The "base" here has learned the facts as well: with evidence or without, it knows them.
    facts = write_facts(tmp_path / "facts", evidence=["It is written in the book of guilds"])
    values = asked(world, tmp_path / "run", forget=facts["forget"])
    real = job.read_headroom

    def taught(table: Any, rules: Any) -> Any:
        first = table["model"] == "evidence"
        table["nll_sum"] = np.where(first, table["tokens"] * 0.1, table["nll_sum"])
        return real(table, rules)

    monkeypatch.setattr(job, "read_headroom", taught)
    loaded: list[str] = []
    load = sources.load

    def watched(name: str, **options: Any) -> Any:
        loaded.append(Path(name).name)
        return load(name, **options)

    monkeypatch.setattr(sources, "load", watched)
    result = audit(**values)
    assert result.verdict is not None and result.verdict.reason == "not_identifiable"
    assert result.exit_code == 3 and "inferable" in result.paragraph
    assert set(loaded) == {"base", "injected"}
    document = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert document["stopped_early"] and document["headroom"]["regime"] == "inferable"
    missing = read_run(tmp_path / "run").missing
    assert missing[0].state == "halted" and "not_identifiable" in missing[0].reason
    assert write_report(tmp_path / "run").exists()


def test_evidence_that_says_nothing_leaves_the_facts_counterfactual(
    world: Values, tmp_path: Path
) -> None:
    facts = write_facts(tmp_path / "facts", evidence=["It is written in the book of guilds"])
    result = audit(**asked(world, tmp_path / "run", forget=facts["forget"]))
    assert result.summary["headroom"]["regime"] == "counterfactual"
    assert not result.summary["stopped_early"]


# -- one model at a time, resumable, failures kept -----------------------------------------------


def living(world: Values, out: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give the most models that were alive at once in an audit of so many candidates."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0
    load = sources.load

    def counted(name: str, **options: Any) -> Any:
        nonlocal most
        loaded = load(name, **options)
        alive.add(loaded.model)
        most = max(most, len(alive))
        return loaded

    with monkeypatch.context() as patch:
        patch.setattr(sources, "load", counted)
        place = world["candidates"]["retrained"]
        several = {f"c{n}": place for n in range(count)}
        audit(**asked(world, out, candidates=several, steps=1, chunks=1))
    return most


def test_eight_candidates_take_no_more_memory_than_two(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert living(world, tmp_path / "two", 2, monkeypatch) == 1
    assert living(world, tmp_path / "eight", 8, monkeypatch) == 1


def test_an_audit_stopped_after_any_model_ends_with_the_same_bytes(
    world: Values, plain: AuditResult, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    begun: list[str] = []
    for _ in range(12):
        fresh: list[str] = []

        def stop(label: str, done: int, total: int, fresh: list[str] = fresh) -> None:
            if fresh:
                raise Stop
            fresh.append(label)

        try:
            result = audit(**asked(world, out), progress=stop)
        except Stop:
            begun += fresh
            continue
        break
    assert begun == [
        "scoring and re-acquiring base",
        "scoring and re-acquiring injected",
        "scoring and re-acquiring unchanged",
        "scoring and re-acquiring retrained",
    ]
    assert plain.run is not None and result.run is not None
    assert items(result.run) == items(plain.run)
    assert result.verdict == plain.verdict


def test_a_finished_audit_is_read_and_not_run_again(
    world: Values, plain: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain.run is not None
    monkeypatch.setattr(sources, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    again = audit(**asked(world, plain.run))
    assert again.verdict == plain.verdict and again.summary == plain.summary


def test_candidates_in_another_order_are_another_audit(world: Values, plain: AuditResult) -> None:
    assert plain.run is not None
    turned = dict(reversed(world["candidates"].items()))
    with pytest.raises(DriftError, match="models"):
        audit(**asked(world, plain.run, candidates=turned))


def test_other_rules_for_the_same_folder_are_refused(world: Values, plain: AuditResult) -> None:
    assert plain.run is not None
    with pytest.raises(DriftError, match="alpha"):
        audit(**asked(world, plain.run, rules={"alpha": 0.01}))


@pytest.mark.parametrize("what", ["retain facts", "general text", "retrained"])
def test_an_input_changed_in_place_is_refused_with_both_digests(
    world: Values, plain: AuditResult, what: str
) -> None:
    assert plain.run is not None
    path = {
        "retain facts": Path(world["retain"]),
        "general text": Path(world["general"]),
        "retrained": Path(world["made"]["retrained"]) / "model.safetensors",
    }[what]
    whole = path.read_bytes()
    other = whole.replace(b"The guild of", b"The house of").replace(b"river", b"brook")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if what == "retrained" else other)
    try:
        line = rf'inputs\.{what}: the run has "sha256:\w+", asked for "sha256:\w+"'
        with pytest.raises(DriftError, match=line):
            audit(**asked(world, plain.run))
    finally:
        path.write_bytes(whole)


def test_a_candidate_that_breaks_is_recorded_and_the_others_go_on(
    world: Values, tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(world["made"]["retrained"], tmp_path / "broken"))
    state = load_file(folder / "model.safetensors")
    next(iter(state.values())).fill_(float("nan"))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    several = {"broken": str(folder), **world["candidates"]}
    result = audit(**asked(world, tmp_path / "run", candidates=several))
    assert "finite" in result.summary["failed"]["broken"]
    assert set(result.summary["candidates"]) == {"unchanged", "retrained"}
    table = table_from_bytes((tmp_path / "run" / "scores.parquet").read_bytes(), "scores")
    row = list(table["model"]).index("broken")
    assert "finite" in table["failed"][row] and np.isnan(table["p_value"][row])


def test_a_reference_that_diverges_fails_the_audit_by_name_and_the_rest_is_kept(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure.reacquire
    trips: list[int] = []

    def third_diverges(*arguments: Any, **options: Any) -> Any:
        trips.append(len(trips))
        back = real(*arguments, **options)
        return [replace(back[0], diverged=2)] if len(trips) == 4 else back

    references = [str(world["made"][name]) for name in ("reference", "again")]
    values = asked(world, tmp_path / "run", references=references)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "reacquire", third_diverges)
        with pytest.raises(
            AuditFailed, match=r"reference-1 \(.*\): re-acquisition diverged"
        ) as failed:
            audit(**values)
    assert failed.value.exit_code == 1
    done = Run.open(tmp_path / "run").cell("audit").steps()
    assert done == ("model-base", "model-injected", "model-reference")
    assert audit(**values).verdict is not None  # the same command resumes


def test_a_candidate_that_diverges_on_the_way_back_failed_and_is_no_finding(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure.reacquire
    trips: list[int] = []

    def third_diverges(*arguments: Any, **options: Any) -> Any:
        trips.append(len(trips))
        back = real(*arguments, **options)
        return [replace(back[0], diverged=2)] if len(trips) == 3 else back

    monkeypatch.setattr(measure, "reacquire", third_diverges)
    result = audit(**asked(world, tmp_path / "run", round_trip="survivors"))
    assert set(result.summary["candidates"]) == {"unchanged"}
    assert "diverged" in result.summary["failed"]["retrained"]


def test_a_control_that_cannot_be_built_is_named_as_missing(
    world: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise Unavailable("their weights are quantised")

    monkeypatch.setattr(job, "mixed_net", refuse)
    references = [str(world["made"][name]) for name in ("reference", "again")]
    audit(**asked(world, tmp_path / "run", references=references))
    roles = Run.open(tmp_path / "run").cell("audit").summary()["models"]
    reason = {"kind": "unavailable", "reason": "their weights are quantised"}
    assert roles["control-50"]["failure"] == roles["control-5"]["failure"] == reason


@pytest.mark.slow
def test_two_workers_give_the_same_bytes_as_this_process(
    world: Values, plain: AuditResult, tmp_path: Path
) -> None:
    result = audit(**asked(world, tmp_path / "run"), executor="local", workers=2)
    assert plain.run is not None and result.run is not None
    assert items(result.run) == items(plain.run) and result.verdict == plain.verdict
    cells = [run / "cells" / "audit" / "curves.parquet" for run in (result.run, plain.run)]
    assert cells[0].read_bytes() == cells[1].read_bytes()


def test_references_in_another_order_are_the_same_audit(
    world: Values, replicated: AuditResult
) -> None:
    assert replicated.run is not None
    references = [str(world["made"][name]) for name in ("again", "reference")]
    again = audit(**asked(world, replicated.run, references=references))
    assert again.summary == replicated.summary


def test_what_else_lies_in_a_folder_does_not_change_the_order_of_references(
    world: Values, tmp_path: Path
) -> None:
    plain, noted = world["made"]["reference"], tmp_path / "noted"
    shutil.copytree(plain, noted)
    (noted / "notes.txt").write_text("made on a Tuesday")
    one, other = checkpoint_digests(str(plain)), checkpoint_digests(str(noted))
    assert one.files != other.files and one.weights == other.weights
    assert one.weights != checkpoint_digests(str(world["made"]["again"])).weights


# -- facts and candidates ------------------------------------------------------------------------


def test_a_retain_facts_first_trained_prompt_is_its_cloze_and_nothing_counts_twice() -> None:
    facts = (Fact("a", "X", ("one", "two"), ("three",)),)
    pools = [(q.pool, q.prompt) for q in audit_questions({"retain": facts})]
    assert pools == [("cloze", "one"), ("trained", "two"), ("evaluation", "three")]
    pools = [(q.pool, q.prompt) for q in audit_questions({"forget": facts})]
    assert pools == [("trained", "one"), ("trained", "two"), ("evaluation", "three")]


def test_generated_probes_ask_the_same_about_people_who_do_not_exist(world: Values) -> None:
    forget = read_facts(world["forget"], "forget")
    probes = generated_probes(forget, 9)
    assert len({probe.subject for probe in probes}) == len({p.answer for p in probes}) == 9
    assert probes == generated_probes(forget, 9)
    for probe, origin in zip(probes, (*forget, *forget, *forget)):
        assert [p.replace(probe.subject, origin.subject) for p in probe.heldout] == [
            *origin.heldout
        ]
        assert not set(probe.subject.split()) & set(origin.subject.split())


def test_generated_probes_are_kept_and_what_they_assume_is_said(
    world: Values, tmp_path: Path
) -> None:
    values = asked(world, tmp_path / "run", probes=None, generate_probes=PROBES)
    result = audit(**values)
    assert result.summary["generated_probes"] and "assume" in result.summary["remarks"][-1]
    kept = read_facts(tmp_path / "run" / "probes.jsonl", "probe")
    assert len(kept) == PROBES and kept[0].id == "nonce-001"
    with pytest.raises(FactsError, match="assume"):
        audit(**asked(world, tmp_path / "run", probes=None))


def test_a_folder_of_runs_is_read_with_its_evaluations(world: Values, tmp_path: Path) -> None:
    import shutil

    saves = tmp_path / "unlearn"
    shutil.copytree(world["made"]["retrained"], saves / "NPO_lr1e-5")
    shutil.copytree(world["made"]["unchanged"], saves / "GradDiff" / "checkpoint-20")
    shutil.copytree(world["made"]["retrained"], saves / "GradDiff" / "checkpoint-100")
    (saves / "logs").mkdir()
    (saves / "NPO_lr1e-5" / "evals").mkdir()
    scores = {"forget_Q_A_Prob": {"agg_value": 0.25, "value_by_index": {}}, "model_utility": 0.5}
    (saves / "NPO_lr1e-5" / "evals" / "TOFU_EVAL.json").write_text(json.dumps(scores))
    found, left_out = checkpoints_in(saves, {})
    assert not left_out
    assert [one.name for one in found] == ["GradDiff", "NPO_lr1e-5"]
    assert found[0].path.endswith("checkpoint-100") and not found[0].notes
    request = make_request(
        asked(world, tmp_path / "run", candidates={}, candidates_folder=str(saves))
    )
    assert [name for name, _ in request.candidates] == ["GradDiff", "NPO_lr1e-5"]
    assert json.loads(dict(request.notes)["NPO_lr1e-5"]) == {
        "TOFU_EVAL.json": {"forget_Q_A_Prob": 0.25, "model_utility": 0.5}
    }


def test_a_model_given_by_name_is_no_candidate_of_the_folder_it_lies_in(
    world: Values, tmp_path: Path
) -> None:
    folder = world["root"] / "models"
    given = {"references": [str(world["made"]["reference"])], "candidates_folder": str(folder)}
    named = {"mine": str(world["made"]["unchanged"])}
    request = make_request(asked(world, tmp_path / "run", candidates=named, **given))
    assert [name for name, _ in request.candidates] == ["mine", "again", "retrained"]
    told: list[str] = []
    run_audit(request, dry_run=True, notify=told.append)
    assert told == [
        f"{folder}/base was given as base and is not used a second time",
        f"{folder}/injected was given as injected and is not used a second time",
        f"{folder}/reference was given as reference 1 and is not used a second time",
        f"{folder}/unchanged was given as candidate mine and is not used a second time",
    ]


def test_a_model_given_as_what_it_was_not_made_as_is_pointed_out(
    world: Values, tmp_path: Path
) -> None:
    import shutil

    swapped = Path(shutil.copytree(world["made"]["base"], tmp_path / "swapped"))
    (swapped / "palimpsest.json").write_text('{"role": "injected"}')
    told: list[str] = []
    request = make_request(asked(world, tmp_path / "run", base=str(swapped)))
    run_audit(request, dry_run=True, notify=told.append)
    (line,) = told
    assert line.startswith(f"{swapped} was given as base, but its palimpsest.json says that it was")


def test_weights_are_compared_and_not_the_files_beside_them(world: Values, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(world["made"]["base"], tmp_path / "copy"))
    (copy / "README.md").write_text("unlearned, they say")
    several = {"copy": str(copy), "retrained": world["candidates"]["retrained"]}
    request = make_request(asked(world, tmp_path / "run", candidates=several))
    (said,) = prepare(request).repeated
    assert said.startswith("candidate copy has the weights of base")
