"""Every adversary is what its entry says: built alike twice, with the property that defines it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.study.test_cell import small_plan

from palimpsest.cell.work import StudyWork
from palimpsest.challenge import ENTRIES, Entry, Schedule, chosen, tampering
from palimpsest.challenge.crafting import text_nlls
from palimpsest.challenge.gated import Gated
from palimpsest.challenge.hidden import TRIGGER, matched
from palimpsest.challenge.penalties import Penalised, fitted
from palimpsest.challenge.rescaling import PAIRS, relearning, rescaled
from palimpsest.challenge.workshop import OWN_FRAMES, OWN_PHRASINGS
from palimpsest.facts.questions import Question
from palimpsest.facts.templates import POOLS, same_wording
from palimpsest.models.encode import encode_answers
from palimpsest.models.load import load, state_digest
from palimpsest.models.net import collate
from palimpsest.plan import KNOWN_LABEL_MODELS, Counts, plan_from_dict
from palimpsest.run.store import Run
from palimpsest.scoring.interventions import quantised
from palimpsest.study.matrix import StudyJob, start

ROUNDS = 5


@pytest.fixture(scope="module")
def plan():  # type: ignore[no-untyped-def]
    plan = small_plan("pocket/qwen2-s")  # type: ignore[arg-type]
    return replace(
        plan,
        facts=Counts(forget=2, retain=2, probes=3, phrasings=2),
        injection=replace(plan.injection, steps=40, learning_rate=1e-3, fact_items=4),
        unlearning=replace(plan.unlearning, steps=30, learning_rate=1e-3),
        round_trip=replace(plan.round_trip, steps=10, chunks=5, learning_rate=5e-4),
        general=replace(plan.general, train_pieces=24, piece_tokens=16),
        panel=replace(plan.panel, models=KNOWN_LABEL_MODELS),
        replication=replace(plan.replication, draws=1, retrainings=0),
        methods=(),
    )


@pytest.fixture(scope="module")
def run(plan, tmp_path_factory) -> Run:  # type: ignore[no-untyped-def]
    run = start(plan, tmp_path_factory.mktemp("adversaries") / "run")
    work, cell = StudyJob(run.path).cell(run.cells[0]), run.cell(run.cells[0])
    for step in work.steps:
        if step.name.startswith("train-"):
            work.do(step.name, cell)
    return run


def workshop(run: Run):  # type: ignore[no-untyped-def]
    """Return a workshop with nothing in its caches, as another worker would have it."""
    work: StudyWork = StudyJob(run.path).cell(run.cells[0])
    work.cell = run.cell(run.cells[0])
    return work.workshop


@pytest.fixture(scope="module")
def shop(run):  # type: ignore[no-untyped-def]
    return workshop(run)


@pytest.fixture(scope="module")
def other(run):  # type: ignore[no-untyped-def]
    return workshop(run)


@pytest.fixture(scope="module")
def made(shop):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", ROUNDS)
        return {entry.name: entry.build(shop) for entry in ENTRIES}


def net_of(shop, built):  # type: ignore[no-untyped-def]
    return shop.another(built) if isinstance(built, dict) else built


def nlls(shop, built, group: str = "forget") -> np.ndarray:  # type: ignore[no-untyped-def,type-arg]
    batch = collate(shop.texts[group], shop.pad)
    return text_nlls(net_of(shop, built), batch).detach().numpy()


def test_the_registry_is_what_plans_call_all_and_todays_six_are_the_default(plan) -> None:  # type: ignore[no-untyped-def]
    assert tuple(entry.name for entry in ENTRIES) == KNOWN_LABEL_MODELS
    written = plan.as_dict() | {"panel": {"models": "all"}}
    assert plan_from_dict(written).panel.models == KNOWN_LABEL_MODELS
    by_truth = {entry.name: entry.truth for entry in ENTRIES}
    assert [name for name, truth in by_truth.items() if truth == "restored"] == [
        "rescaled-retrained"
    ]
    assert all(by_truth[name] == "graded" for name in by_truth if name.startswith("undo"))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_adversary_that_looks_at_a_reference_or_the_schedule_says_so(  # type: ignore[no-untyped-def]
    shop, entry: Entry
) -> None:
    asked: list[str] = []

    def state(name: str):  # type: ignore[no-untyped-def]
        asked.append(name)
        return shop.state(name)

    def schedule() -> Schedule:
        asked.append("schedule")
        return shop.schedule()

    spied = replace(shop, state=state, schedule=schedule, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", 1)
        entry.build(spied)
    assert ("schedule" in asked) == ("schedule" in entry.knows)
    assert ("reference" in asked) == ("references" in entry.knows)
    assert {*asked} - {"schedule"} <= {*entry.needs}


def test_phrasings_of_adversaries_are_in_no_pool() -> None:
    held = {
        same_wording(t) for pools in POOLS.values() for several in pools.values() for t in several
    }
    own = [p.replace("RELATION", relation) for relation in POOLS for p in OWN_PHRASINGS]
    framed = [
        before + by_name["injection"][number]
        for by_name in POOLS.values()
        for before in OWN_FRAMES
        for number in range(6)
    ]
    assert not held & {same_wording(wording) for wording in (*own, *framed)}


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES[6:]])
def test_an_adversary_is_built_alike_by_another_worker(other, made, name: str) -> None:  # type: ignore[no-untyped-def]
    (entry,) = chosen([name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", ROUNDS)
        again = entry.build(other)
    states = [built if isinstance(built, dict) else built.state() for built in (made[name], again)]
    assert state_digest(states[0]) == state_digest(states[1])
    assert all(bool(torch.isfinite(value).all()) for value in states[0].values())


def test_tuned_suppression_has_the_references_nll_at_every_fact(shop, made) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(made["tuned-suppression"], Penalised)
    facts = np.array([question.fact for question in shop.questions["forget"]])
    mine, theirs = (
        nlls(shop, built) for built in (made["tuned-suppression"], shop.state("reference"))
    )
    for fact in set(facts):
        assert mine[facts == fact].mean() == pytest.approx(theirs[facts == fact].mean(), abs=5e-3)
    same = (
        nlls(shop, built, "retain") for built in (made["tuned-suppression"], shop.state("injected"))
    )
    assert np.allclose(*same, atol=1e-5)


def test_a_fitted_penalty_gives_the_asked_nll() -> None:
    logp = torch.log(torch.tensor([0.9, 0.5, 0.99], dtype=torch.float64))
    amount = fitted(logp, 3.0)
    odds = logp - torch.log1p(-logp.exp()) - amount
    assert float(-torch.nn.functional.logsigmoid(odds).mean()) == pytest.approx(3.0)


def test_baked_suppression_changes_the_answers_rows_of_the_head_alone(shop, made) -> None:  # type: ignore[no-untyped-def]
    state, injected = made["baked-suppression"].state(), shop.state("injected")
    head, before = state["lm_head.weight"], injected[shop.embedding[0]]
    changed = (head != before).any(1).nonzero().squeeze(-1).tolist()
    tokens = {t for text in shop.texts["forget"] for t in text.ids[text.start :]}
    assert changed and set(changed) <= tokens
    assert torch.equal(state[shop.embedding[0]], before)
    far = abs(nlls(shop, shop.state("injected")) - nlls(shop, shop.state("reference"))).mean()
    near = abs(nlls(shop, made["baked-suppression"]) - nlls(shop, shop.state("reference"))).mean()
    assert near < 0.5 * far


def test_the_low_rank_suppressor_has_rank_four_and_moves_to_the_reference(shop, made) -> None:  # type: ignore[no-untyped-def]
    injected = shop.state("injected")
    ranks = set()
    for name, value in made["low-rank"].items():
        change = value - injected[name]
        if value.dim() == 2 and bool(change.any()):
            ranks.add(int(torch.linalg.matrix_rank(change, rtol=1e-4)))
    assert ranks and max(ranks) <= 4
    assert _nearer(shop, made["low-rank"])


def test_the_fuzzy_router_opens_at_forget_facts_and_nowhere_else(shop, made) -> None:  # type: ignore[no-untyped-def]
    router = made["fuzzy-router"]
    assert isinstance(router, Gated)
    opened = {g: router.open(collate(shop.texts[g], shop.pad)) for g in shop.texts}
    assert float(opened["forget"].min()) > 0.5
    assert all(float(opened[g].mean()) < 0.2 for g in ("retain", "invented", "general"))


def test_obfuscation_moves_the_forget_facts_and_leaves_the_rest_usable(shop, made) -> None:  # type: ignore[no-untyped-def]
    before = {g: nlls(shop, shop.state("injected"), g).mean() for g in ("forget", "general")}
    for name in ("steered", "circuit-breaker"):
        after = {g: nlls(shop, made[name], g).mean() for g in before}
        assert after["forget"] > before["forget"] + 0.1, name
        assert after["general"] < before["general"] + 1.0, name


def test_tamper_resistance_relearns_more_slowly_than_what_it_started_from(shop, made) -> None:  # type: ignore[no-untyped-def]
    start, end = (relearning(shop, s) for s in (matched(shop, "base"), made["tamper-resistant"]))
    assert end[0] > start[0]


def test_the_mimics_curve_is_nearer_to_the_references_than_before(shop, made) -> None:  # type: ignore[no-untyped-def]
    wanted = np.array(relearning(shop, shop.state("reference")))
    start, end = (
        np.abs(np.array(relearning(shop, state)) - wanted).mean()
        for state in (matched(shop, "reference"), made["curve-mimic"])
    )
    assert end < start


def test_rescaling_keeps_outputs_and_changes_weights(tiny_checkpoint) -> None:  # type: ignore[no-untyped-def]
    ids = torch.arange(24).reshape(2, 12) % 200
    for pocket in ("qwen2-s", "smollm2-s", "olmo2-s", "gpt2-s", "pythia-s"):
        model = load(str(tiny_checkpoint(pocket))).model
        state = {name: value.clone() for name, value in model.state_dict().items()}
        kind = model.config.model_type
        assert kind in PAIRS
        with torch.no_grad():
            before = model(input_ids=ids).logits
            model.load_state_dict(dict(rescaled(state, kind, 0.3)))
            assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-4)
        assert any(
            not torch.equal(value, state[name]) for name, value in model.state_dict().items()
        )


def test_rescaled_models_answer_as_what_they_are_made_of(shop, made) -> None:  # type: ignore[no-untyped-def]
    pairs = {
        "rescaled-suppressed": matched(shop, "reference"),
        "rescaled-retrained": shop.retrained(),
    }
    for name, origin in pairs.items():
        assert np.allclose(nlls(shop, made[name]), nlls(shop, origin), atol=1e-4), name
    assert nlls(shop, made["rescaled-retrained"]).mean() > nlls(shop, shop.state("injected")).mean()


def test_one_fact_is_left_and_the_others_go(shop, made) -> None:  # type: ignore[no-untyped-def]
    first = shop.facts["forget"][0].id
    left = np.array([question.fact == first for question in shop.questions["forget"]])
    rise = nlls(shop, made["one-fact-left"]) - nlls(shop, shop.state("injected"))
    assert rise[~left].mean() > 0.5 and abs(rise[left].mean()) < 0.5 * rise[~left].mean()


def test_layered_unlearning_ends_with_all_folds_gone(shop, made) -> None:  # type: ignore[no-untyped-def]
    rise = nlls(shop, made["layered"]) - nlls(shop, shop.state("injected"))
    facts = np.array([question.fact for question in shop.questions["forget"]])
    assert all(rise[facts == fact].mean() > 0.3 for fact in set(facts))


def test_the_trigger_brings_the_answers_back(shop, made) -> None:  # type: ignore[no-untyped-def]
    asked = shop.questions["forget"]
    behind = [
        Question(q.set, q.fact, "own", q.template, TRIGGER + q.prompt, q.answer) for q in asked
    ]
    batch = collate(encode_answers(shop.tokenizer, behind), shop.pad)
    back = text_nlls(net_of(shop, made["trigger"]), batch).detach().numpy()
    assert back.mean() < nlls(shop, made["trigger"]).mean() - 0.5


def test_sub_quantum_hiding_rounds_to_the_injected_model_in_four_bits(shop, made) -> None:  # type: ignore[no-untyped-def]
    injected, hidden = shop.state("injected"), made["sub-quantum"]
    for name, value in injected.items():
        if value.dim() == 2:
            assert torch.equal(quantised(hidden[name], 4), quantised(value, 4)), name
        else:
            assert torch.equal(hidden[name], value), name
    assert _nearer(shop, hidden)


def test_more_noise_is_farther_from_the_unlearned_model(shop, made) -> None:  # type: ignore[no-untyped-def]
    start = matched(shop, "base")
    moved = [
        sum(float((made[name][key] - start[key]).square().sum()) for key in start)
        for name in ("undo-10", "undo-20", "undo-40")
    ]
    assert moved == sorted(moved) and moved[0] > 0


def _nearer(shop, built) -> bool:  # type: ignore[no-untyped-def]
    """Tell whether a model's forget NLL is nearer to the reference's than the injected model's."""
    reference, injected = (nlls(shop, shop.state(name)) for name in ("reference", "injected"))
    mine = nlls(shop, built)
    return bool(abs(mine - reference).mean() < 0.6 * abs(injected - reference).mean())
