"""Known-label models are what their labels say, and the same whoever builds them."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.cell.small import bare_plan, cell_work, only_cell

from palimpsest.cell.study import StudySpecs, study_terms
from palimpsest.config.plan import Plan
from palimpsest.config.sections import General, Injection, Reacquisition, Unlearning
from palimpsest.criteria.whitebox import quantize
from palimpsest.facts.nonce import POOLS, same_wording
from palimpsest.facts.questions import Question
from palimpsest.known import KnownLabel, Knows, chosen, entries, tampering
from palimpsest.known.basic import PAIRS, rescale
from palimpsest.known.hidden import TRIGGER
from palimpsest.known.kit import OWN_FRAMES, OWN_PHRASINGS, Schedule, text_nlls
from palimpsest.known.penalties import fit_penalty
from palimpsest.known.wrappers import Gated, Penalized
from palimpsest.models.encode import encode_answers
from palimpsest.models.load import load, state_digest
from palimpsest.models.net import collate
from palimpsest.run.store import Run

ROUNDS = 5
SLOW = ("undo-20", "circuit-breaker", "rescaled-retrained", "curve-mimic")
DRAWN = (
    *("fuzzy-router", "low-rank", "baked-suppression", "sub-quantum"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
)
"""One of every way to draw random numbers and to train."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return bare_plan(
        injection=Injection(steps=40, learning_rate=1e-3, fact_items=4, general_items=2),
        unlearning=Unlearning(30, 1e-3, 2.5e-4, forget_items=2, retain_items=2),
        reacquisition=Reacquisition(steps=10, chunks=5, learning_rate=5e-4, items=2),
        general=General(train_pieces=24, scored_pieces=2, piece_tokens=16),
    )


@pytest.fixture(scope="module")
def run(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Run:
    terms = study_terms(plan, StudySpecs(plan))
    run = Run.create_or_resume(tmp_path_factory.mktemp("adversaries") / "run", *terms)
    work, cell = cell_work(plan), only_cell(run)
    for step in work.steps:
        if step.name.startswith("train-"):
            work.do(step, cell)
    return run


def workshop(plan: Plan, run: Run):
    """Return a workshop with nothing in its caches, as another worker would have it."""
    work = cell_work(plan)
    work.store = only_cell(run)
    return work.workshop


@pytest.fixture(scope="module")
def shop(plan, run):
    return workshop(plan, run)


@pytest.fixture(scope="module")
def other(plan, run):
    return workshop(plan, run)


class Made(dict):  # type: ignore[type-arg]
    """The adversaries by name, each built when it is first asked for."""

    def __init__(self, shop) -> None:
        super().__init__()
        self.shop = shop

    def __missing__(self, name: str):
        self[name] = build(name, self.shop)
        return self[name]


def build(name: str, shop):
    (entry,) = chosen([name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", ROUNDS)
        return entry.build(shop)


@pytest.fixture(scope="module")
def made(shop) -> Made:
    return Made(shop)


def net_of(shop, built):
    return shop.nets.another(built) if isinstance(built, Mapping) else built


def nlls(shop, built, group: str = "forget") -> np.ndarray:
    return text_nlls(net_of(shop, built), shop.batch(group)).detach().numpy()


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_an_adversary_that_looks_at_a_reference_or_the_schedule_says_so(
    shop, entry: KnownLabel
) -> None:
    asked: list[str] = []

    def state(name: str):
        asked.append(name)
        return shop.state(name)

    def schedule(number: int | None) -> Schedule:
        asked.append("schedule")
        return shop.schedule(number)

    spied = replace(shop, state=state, schedule=schedule, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", 1)
        entry.build(spied)
    assert ("schedule" in asked) == (Knows.SCHEDULE in entry.knows)
    assert ("reference" in asked) == (Knows.REFERENCES in entry.knows)
    assert {*asked} - {"schedule"} <= {*entry.builds_on}


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


@pytest.mark.parametrize("name", DRAWN)
def test_an_adversary_is_built_alike_by_another_worker(other, made, name: str) -> None:
    (entry,) = chosen([name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tampering, "ROUNDS", ROUNDS)
        again = entry.build(other)
    states = [
        built if isinstance(built, Mapping) else built.state() for built in (made[name], again)
    ]
    assert state_digest(states[0]) == state_digest(states[1])
    assert all(bool(torch.isfinite(value).all()) for value in states[0].values())


def test_tuned_suppression_has_the_references_nll_at_every_fact(shop, made) -> None:
    assert isinstance(made["tuned-suppression"], Penalized)
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
    amount = fit_penalty(logp, 3.0)
    odds = logp - torch.log1p(-logp.exp()) - amount
    assert float(-torch.nn.functional.logsigmoid(odds).mean()) == pytest.approx(3.0)


def test_baked_suppression_changes_the_answers_rows_of_the_head_alone(shop, made) -> None:
    state, injected = made["baked-suppression"].state(), shop.state("injected")
    head, before = state["lm_head.weight"], injected[shop.embedding[0]]
    changed = (head != before).any(1).nonzero().squeeze(-1).tolist()
    tokens = {t for text in shop.texts["forget"] for t in text.ids[text.start :]}
    assert changed and set(changed) <= tokens
    assert torch.equal(state[shop.embedding[0]], before)
    far = abs(nlls(shop, shop.state("injected")) - nlls(shop, shop.state("reference"))).mean()
    near = abs(nlls(shop, made["baked-suppression"]) - nlls(shop, shop.state("reference"))).mean()
    assert near < 0.5 * far


def test_the_low_rank_suppressor_has_rank_four_and_moves_to_the_reference(shop, made) -> None:
    injected = shop.state("injected")
    ranks = set()
    for name, value in made["low-rank"].items():
        change = value - injected[name]
        if value.dim() == 2 and bool(change.any()):
            ranks.add(int(torch.linalg.matrix_rank(change, rtol=1e-4)))
    assert ranks and max(ranks) <= 4
    assert _nearer(shop, made["low-rank"])


def test_the_fuzzy_router_opens_at_forget_facts_and_nowhere_else(shop, made) -> None:
    router = made["fuzzy-router"]
    assert isinstance(router, Gated)
    opened = {g: router.open(shop.batch(g)) for g in shop.texts}
    assert float(opened["forget"].min()) > 0.5
    assert all(float(opened[g].mean()) < 0.2 for g in ("retain", "invented", "general"))


def test_obfuscation_moves_the_forget_facts_and_leaves_the_rest_usable(shop, made) -> None:
    before = {g: nlls(shop, shop.state("injected"), g).mean() for g in ("forget", "general")}
    for name in ("steered", "circuit-breaker"):
        after = {g: nlls(shop, made[name], g).mean() for g in before}
        assert after["forget"] > before["forget"] + 0.1, name
        assert after["general"] < before["general"] + 1.0, name


def test_tamper_resistance_relearns_more_slowly_than_what_it_started_from(shop, made) -> None:
    start, end = map(shop.relearning, (shop.matched("base"), made["tamper-resistant"]))
    assert end[0] > start[0]


def test_the_mimics_curve_is_nearer_to_the_references_than_before(shop, made) -> None:
    wanted = np.array(shop.relearning(shop.state("reference")))
    start, end = (
        np.abs(np.array(shop.relearning(state)) - wanted).mean()
        for state in (shop.matched("reference"), made["curve-mimic"])
    )
    assert end < start


def test_rescaling_keeps_outputs_and_changes_weights(tiny_checkpoint) -> None:
    ids = torch.arange(24).reshape(2, 12) % 200
    for pocket in ("qwen2-s", "smollm2-s", "olmo2-s", "gpt2-s", "pythia-s"):
        loaded = load(str(tiny_checkpoint(pocket)))
        model = loaded.model
        state = {name: value.clone() for name, value in model.state_dict().items()}
        assert model.config.model_type in PAIRS
        with torch.no_grad():
            before = model(input_ids=ids).logits
            changed = rescale(SimpleNamespace(nets=SimpleNamespace(loaded=loaded)), state, 0.3)
            model.load_state_dict(dict(changed))
            assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-4)
        assert any(not torch.equal(changed[name], value) for name, value in state.items())


def test_rescaled_models_answer_as_what_they_are_made_of(shop, made) -> None:
    pairs = {
        "rescaled-suppressed": shop.matched("reference"),
        "rescaled-retrained": shop.retrained(),
    }
    for name, origin in pairs.items():
        assert np.allclose(nlls(shop, made[name]), nlls(shop, origin), atol=1e-4), name
    assert nlls(shop, made["rescaled-retrained"]).mean() > nlls(shop, shop.state("injected")).mean()


def test_one_fact_is_left_and_the_others_go(shop, made) -> None:
    first = shop.facts["forget"][0].id
    left = np.array([question.fact == first for question in shop.questions["forget"]])
    rise = nlls(shop, made["one-fact-left"]) - nlls(shop, shop.state("injected"))
    assert rise[~left].mean() > 0.5 and abs(rise[left].mean()) < 0.5 * rise[~left].mean()


def test_layered_unlearning_ends_with_all_folds_gone(shop, made) -> None:
    rise = nlls(shop, made["layered"]) - nlls(shop, shop.state("injected"))
    facts = np.array([question.fact for question in shop.questions["forget"]])
    assert all(rise[facts == fact].mean() > 0.3 for fact in set(facts))


def test_the_trigger_brings_the_answers_back(shop, made) -> None:
    asked = shop.questions["forget"]
    behind = [
        Question(q.set, q.fact, "own", q.template, TRIGGER + q.prompt, q.answer) for q in asked
    ]
    batch = collate(encode_answers(shop.tokenizer, behind))
    back = text_nlls(net_of(shop, made["trigger"]), batch).detach().numpy()
    assert back.mean() < nlls(shop, made["trigger"]).mean() - 0.5


def test_sub_quantum_hiding_rounds_to_the_injected_model_in_four_bits(shop, made) -> None:
    injected, hidden = shop.state("injected"), made["sub-quantum"]
    for name, value in injected.items():
        if value.dim() == 2:
            assert torch.equal(quantize(hidden[name], 4), quantize(value, 4)), name
        else:
            assert torch.equal(hidden[name], value), name
    assert _nearer(shop, hidden)


@pytest.mark.slow
def test_more_noise_is_farther_from_the_unlearned_model(shop, made) -> None:
    start = shop.matched("base")
    moved = [
        sum(float((made[name][key] - start[key]).square().sum()) for key in start)
        for name in ("undo-10", "undo-20", "undo-40")
    ]
    assert moved == sorted(moved) and moved[0] > 0


def _nearer(shop, built) -> bool:
    """Tell whether a model's forget NLL is nearer to the reference's than the injected model's."""
    reference, injected = (nlls(shop, shop.state(name)) for name in ("reference", "injected"))
    mine = nlls(shop, built)
    return bool(abs(mine - reference).mean() < 0.6 * abs(injected - reference).mean())
