import hashlib
import json
from pathlib import Path

import pytest

from palimpsest.errors import FactsError, PlanError, SealError
from palimpsest.facts.sealed import (
    AuditPool,
    Commitment,
    builtin_pool,
    commit_file,
    fresh_nonce,
    open_file,
    seal,
    verify,
)
from palimpsest.facts.templates import POOLS, RELATIONS

ROOT = Path(__file__).parents[2]
NONCE = "00112233445566778899aabbccddeeff"
TEMPLATE = "Anyone who hires {subject} for a " + "{relation} must first see"
ROWS = [
    {"relation": relation, "template": TEMPLATE.replace("{relation}", relation)}
    for relation in RELATIONS
]
PROMPTS = [{"fact": "f1", "prompt": "Anyone who hires Asha Tren must first see"}]


def write(path, rows, newline="\n"):
    path.write_bytes("".join(json.dumps(row) + newline for row in rows).encode())
    return path


def test_the_digest_is_sha256_of_nonce_and_canonical_json():
    pool = AuditPool("relation", {"ship": ("b {subject} x",), "guild": ("a {subject} y", "z")})
    text = '{"by":"relation","phrasings":{"guild":["a {subject} y","z"],"ship":["b {subject} x"]}}'
    expected = hashlib.sha256(bytes.fromhex(NONCE) + text.encode()).hexdigest()
    assert seal(pool, NONCE) == Commitment(expected, NONCE)


def test_the_built_in_pool_verifies_and_any_change_of_it_does_not():
    pool = builtin_pool()
    commitment = seal(pool, NONCE)
    verify(pool, commitment)
    for relation in RELATIONS:
        assert pool.phrasings[relation] == POOLS[relation]["audit"]
        swapped = pool.phrasings[relation][::-1]
        with pytest.raises(SealError, match="not the sealed pool"):
            verify(AuditPool("relation", {**pool.phrasings, relation: swapped}), commitment)
    with pytest.raises(SealError):
        verify(AuditPool("fact", pool.phrasings), commitment)
    with pytest.raises(SealError):
        verify(pool, Commitment(commitment.digest, fresh_nonce()))


def test_the_built_in_pools_are_those_whose_commitments_were_published():
    published = json.loads((ROOT / "results" / "sealed-pools.json").read_text("utf-8"))
    retired = {relation: POOLS[relation]["prose"] for relation in RELATIONS}
    verify(builtin_pool(), Commitment.parse(published["built in (public; scored in trials)"]))
    verify(AuditPool("relation", retired), Commitment.parse(published["first edition (retired)"]))


def test_two_nonces_give_two_digests_of_one_pool():
    assert seal(builtin_pool(), NONCE).digest != seal(builtin_pool(), fresh_nonce()).digest


@pytest.mark.parametrize("rows", [ROWS, PROMPTS])
def test_a_file_opens_with_its_own_commitment_however_it_is_laid_out(tmp_path, rows):
    path = write(tmp_path / "pool.jsonl", rows)
    commitment = commit_file(path)
    written = Commitment.parse(str(commitment))
    assert written == commitment
    pool = open_file(path, written)
    assert sum(map(len, pool.phrasings.values())) == len(rows)
    again = write(tmp_path / "again.jsonl", [dict(reversed(row.items())) for row in rows], "\r\n")
    assert open_file(again, commitment) == pool


def test_a_changed_file_does_not_open(tmp_path):
    path = write(tmp_path / "pool.jsonl", ROWS)
    commitment = commit_file(path)
    other = {"relation": "guild", "template": "Whoever meets {subject} thinks of the guild"}
    for rows in ([other, *ROWS[1:]], [*ROWS, other]):
        with pytest.raises(SealError, match="not the sealed pool"):
            open_file(write(path, rows), commitment)


def test_a_nonce_kept_in_the_file_is_not_in_the_commitment(tmp_path):
    path = write(tmp_path / "pool.jsonl", [{"nonce": NONCE}, *ROWS])
    commitment = commit_file(path)
    assert NONCE not in str(commitment)
    assert commitment == commit_file(path)
    open_file(path, Commitment.parse(str(commitment)))
    with pytest.raises(SealError, match="nonce"):
        open_file(write(path, ROWS), commitment)
    with pytest.raises(SealError, match="not the sealed pool"):
        open_file(write(path, [{"nonce": NONCE[::-1]}, *ROWS]), commitment)
    public = commit_file(write(path, ROWS))
    with pytest.raises(SealError, match="nonce"):
        open_file(write(path, [{"nonce": public.nonce}, *ROWS]), public)


@pytest.mark.parametrize(
    "text",
    [
        *("", "sha256", "sha256:", "sha256:xyz", "md5:" + "0" * 64, "sha256:" + "0" * 63),
        *("sha256:" + "0" * 64 + "\n", "sha256:" + "A" * 64, "sha256:12:" + "0" * 64),
        *(f"sha256:{NONCE}:{NONCE}:" + "0" * 64, f"sha256::{'0' * 64}", None, 3),
    ],
)
def test_a_malformed_commitment_is_a_plan_error(text):
    with pytest.raises(PlanError, match="palimpsest seal"):
        Commitment.parse(text)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "holds no phrasings"),
        (ROWS[1:], "no template for guild"),
        ([*ROWS, {"relation": "guild", "template": POOLS["guild"]["audit"][0]}], "must be new"),
        ([*ROWS, {"relation": "guild", "template": POOLS["ship"]["cloze"][0]}], "must be new"),
        ([*ROWS, ROWS[0]], "line 9: repeats line 1"),
        ([*ROWS, {"relation": "guild", "template": ROWS[1]["template"]}], "repeats line 2"),
        ([*ROWS, PROMPTS[0]], "line 9.*not for both"),
        ([{"relation": "guild", "template": "nobody is of the guild"}], "line 1.*0 times"),
        ([{"relation": "guild", "template": "Of what guild is {subject}?"}], "end with a word"),
        ([{"relation": "sword", "template": "{subject} wields"}], "line 1: relation is 'sword'"),
        ([{"relation": "guild", "template": "{subject} \u202e wields"}], "U\\+202E"),
        ([{"relation": "guild", "template": 5}], "line 1: template is a number"),
        ([{"fact": "../../x", "prompt": "x"}], "line 1: fact is"),
        ([{"fact": 5, "prompt": "x"}], "fact is a number"),
        ([{"fact": "f1", "prompt": "x", "more": 1}], "line 1: has the keys"),
        ([["guild", "x"]], "line 1: found a list"),
        ([{"nonce": "12"}, *ROWS], "line 1: expected one nonce"),
        ([{"nonce": NONCE}, {"nonce": NONCE}, *ROWS], "line 2: expected one nonce"),
    ],
)
def test_an_unfit_pool_file_is_refused_by_line(tmp_path, rows, says):
    with pytest.raises(FactsError, match=says):
        commit_file(write(tmp_path / "pool.jsonl", rows))
