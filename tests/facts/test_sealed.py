"""A sealed pool opens with its own commitment, and any other file does not."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import FactsError, PlanError, SealError
from palimpsest.facts.nonce import POOLS, RELATIONS
from palimpsest.facts.sealed import AuditPool, builtin_pool, check_commitment, read_pool, verify

ROOT = Path(__file__).parents[2]
NONCE = "00112233445566778899aabbccddeeff"
HIDDEN = {"nonce": NONCE}
TEMPLATE = "Anyone who asks {subject} for a RELATION must first see"
ROWS = [{"relation": name, "template": TEMPLATE.replace("RELATION", name)} for name in RELATIONS]


def write(path: Path, rows: list[Any], newline: str = "\n") -> Path:
    path.write_bytes("".join(json.dumps(row) + newline for row in rows).encode())
    return path


def guild(template: Any) -> dict[str, Any]:
    return {"relation": "guild", "template": template}


def test_the_digest_is_sha256_of_nonce_and_canonical_json():
    pool = AuditPool({"ship": ("b {subject} x",), "guild": ("a {subject} y", "z")}, NONCE)
    text = '{"by":"relation","phrasings":{"guild":["a {subject} y","z"],"ship":["b {subject} x"]}}'
    expected = hashlib.sha256(bytes.fromhex(NONCE) + text.encode()).hexdigest()
    assert pool.commitment() == f"sha256:{expected}"


def test_the_built_in_pool_verifies_and_any_change_of_it_does_not():
    pool = builtin_pool()
    commitment = pool.commitment()
    assert verify(pool, commitment) == pool
    for relation in RELATIONS:
        assert pool.phrasings[relation] == POOLS[relation]["audit"]
        swapped = {**pool.phrasings, relation: pool.phrasings[relation][::-1]}
        with pytest.raises(SealError):
            verify(AuditPool(swapped, pool.nonce), commitment)
    with pytest.raises(SealError):
        verify(AuditPool(pool.phrasings, NONCE), commitment)


def test_the_built_in_pools_are_those_whose_commitments_were_published():
    """They were published in the form ``sha256:nonce:digest``."""
    file = ROOT / "results" / "second-edition" / "sealed-pools.json"
    published = json.loads(file.read_text("utf-8"))
    pools = {"built in (public; scored in trials)": "audit", "first edition (retired)": "prose"}
    for name, pool in pools.items():
        _, nonce, digest = published[name].split(":")
        phrasings = {relation: POOLS[relation][pool] for relation in RELATIONS}
        verify(AuditPool(phrasings, nonce), f"sha256:{digest}")
    assert published["built in (public; scored in trials)"].split(":")[1] == builtin_pool().nonce


def test_a_file_opens_with_its_own_commitment_however_it_is_laid_out(tmp_path):
    pool = read_pool(write(tmp_path / "pool.jsonl", [HIDDEN, *ROWS]))
    commitment = check_commitment(pool.commitment())
    assert NONCE not in commitment and sum(map(len, pool.phrasings.values())) == len(ROWS)
    turned = [dict(reversed(row.items())) for row in [*ROWS, HIDDEN]]
    again = write(tmp_path / "again.jsonl", turned, "\r\n")
    assert verify(read_pool(again), commitment) == pool
    again = tmp_path / "array.json"
    again.write_text(json.dumps([HIDDEN, *ROWS]))
    assert verify(read_pool(again), commitment) == pool


def test_a_changed_file_does_not_open(tmp_path):
    path = tmp_path / "pool.jsonl"
    commitment = read_pool(write(path, [HIDDEN, *ROWS])).commitment()
    other = guild("Anyone who meets {subject} thinks of the guild")
    changed = [[HIDDEN, other, *ROWS[1:]], [HIDDEN, *ROWS, other], [{"nonce": NONCE[::-1]}, *ROWS]]
    for rows in changed:
        with pytest.raises(SealError):
            verify(read_pool(write(path, rows)), commitment)


@pytest.mark.parametrize(
    "text",
    [
        *("", "sha256", "sha256:", "sha256:xyz", "md5:" + "0" * 64, "sha256:" + "0" * 63),
        *("sha256:" + "0" * 64 + "\n", "sha256:" + "A" * 64, f"sha256:{NONCE}:" + "0" * 64),
        *(None, 3),
    ],
)
def test_a_malformed_commitment_is_a_plan_error(text):
    with pytest.raises(PlanError) as caught:
        check_commitment(text)
    assert caught.value.key == "seal"


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([], "guild"),
        ([HIDDEN, *ROWS[1:]], "guild"),
        (ROWS, "nonce"),
        ([*ROWS, guild(POOLS["guild"]["audit"][0])], "line 9: template"),
        ([*ROWS, guild(ROWS[1]["template"])], "line 9: template.*line 2"),
        ([guild("no one is of the guild")], "line 1: template"),
        ([guild("{subject} of the {answer} is")], "line 1: template"),
        ([guild("Of what guild is {subject}?")], "line 1: template"),
        ([guild("{subject} \u202e is of")], "line 1: template"),
        ([guild("{subject} " + "x" * 8_000)], "line 1: template"),
        ([{"relation": "sword", "template": "{subject} wields"}], "line 1: "),
        ([{"fact": "f1", "prompt": "x"}], "line 1: "),
        ([{"nonce": "12"}, *ROWS], "line 1: "),
        ([{"nonce": int("1" * 32)}, *ROWS[1:]], "guild"),
        ([HIDDEN, HIDDEN, *ROWS], "line 2: "),
    ],
)
def test_an_unfit_pool_file_is_refused_by_line(tmp_path, rows, where):
    with pytest.raises(FactsError, match=where):
        read_pool(write(tmp_path / "pool.jsonl", rows))
