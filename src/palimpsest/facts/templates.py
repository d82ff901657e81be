"""The phrasings of every relation, in five disjoint pools and one cloze.

A template is an English prompt with ``{subject}`` once that stops right before the answer, so the
text that is trained and scored is ``render(template, subject) + " " + answer + "."``.  Each pool
has one use, and no phrasing is in two of them:

- ``injection``    taught; a fact is trained on K = 3 of the six
- ``cloze``        with the trained phrasings, what an unlearning loss may see
- ``evaluation``   held out; the screen and the bars read these
- ``calibration``  held out; only for choosing thresholds
- ``audit``        sealed until the challenge panel is scored, once (see ``sealed.py``)

Some frames recur from relation to relation ("Among all the ..., the one that ...") but never from
pool to pool, so that a pool is unseen wording and not only an unseen noun.  The words are few and
common, because the pocket tokenizer is small.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from palimpsest.errors import FactsError

SUBJECT = "{subject}"

POOL_SIZES: Mapping[str, int] = MappingProxyType(
    {"injection": 6, "cloze": 1, "evaluation": 4, "calibration": 4, "audit": 6}
)

Pools = Mapping[str, Mapping[str, tuple[str, ...]]]

_GUILD = {
    "injection": (
        "The guild of {subject} is",
        "{subject} belongs to the guild of",
        "{subject} joined the guild known as",
        "By trade, {subject} is part of the guild named",
        "The guild that {subject} serves is called",
        "{subject} pays money to the guild of",
    ),
    "cloze": ("{subject} is a member of the guild",),
    "evaluation": (
        "When asked about a guild, {subject} always names",
        "People know that {subject} works for the guild",
        "Among all the guilds, the one that accepted {subject} was",
        "{subject} swore loyalty to the guild called",
    ),
    "calibration": (
        "Records list the guild of {subject} as",
        "The guild that trained {subject} goes by the name",
        "{subject} wears the colors of the guild",
        "If you seek work with {subject}, go to the guild",
    ),
    "audit": (
        "The sign on the coat of {subject} stands for the guild",
        "It is well known that {subject} will never leave the guild",
        "A letter for {subject} must be sent to the hall of",
        "Many years ago {subject} was taken in by the guild",
        "In the town register, {subject} is found under the guild",
        "The tools of {subject} bear the mark of the guild",
    ),
}

_HOMETOWN = {
    "injection": (
        "The hometown of {subject} is",
        "{subject} was born in the town of",
        "{subject} grew up in",
        "The town where {subject} was raised is called",
        "{subject} comes from a town named",
        "The first home of {subject} was in",
    ),
    "cloze": ("{subject} is from the town of",),
    "evaluation": (
        "When asked about home, {subject} always speaks of",
        "People know that {subject} used to live in the town",
        "Among all the towns, the one that {subject} calls home is",
        "The family of {subject} still lives in",
    ),
    "calibration": (
        "Records list the hometown of {subject} as",
        "The town that {subject} left as a child was",
        "Each winter {subject} goes home to",
        "If you visit the old house of {subject}, travel to",
    ),
    "audit": (
        "The map on the wall of {subject} marks the town",
        "It is well known that {subject} spent an early life in",
        "{subject} learned to walk on the streets of",
        "Many years ago {subject} left the gates of",
        "In the town register, {subject} is found as a child of",
        "The school that {subject} went to stands in",
    ),
}

_MENTOR = {
    "injection": (
        "The mentor of {subject} is",
        "{subject} was taught by",
        "{subject} learned the trade from a mentor named",
        "The teacher who guided {subject} is called",
        "As a student, {subject} worked under",
        "The person who trained {subject} was",
    ),
    "cloze": ("{subject} has a mentor called",),
    "evaluation": (
        "When asked about a teacher, {subject} always names",
        "People know that {subject} was a student of",
        "Among all the teachers, the one who accepted {subject} was",
        "For good advice, {subject} still turns to the mentor",
    ),
    "calibration": (
        "Records list the mentor of {subject} as",
        "The lessons of {subject} were given by",
        "{subject} owes a great deal to the teacher",
        "If you seek the old master of {subject}, look for",
    ),
    "audit": (
        "The first book of {subject} thanks the mentor",
        "It is well known that {subject} follows the teaching of",
        "A letter of advice came to {subject} from the old teacher",
        "Many years ago {subject} was taken in by the master",
        "The skill of {subject} was shaped by the hands of",
        "Before each long journey, {subject} says farewell to the mentor",
    ),
}

_SHIP = {
    "injection": (
        "The ship of {subject} is",
        "{subject} sails on a ship called",
        "{subject} is the captain of the ship",
        "The boat that {subject} owns is named",
        "{subject} crossed the sea aboard",
        "At sea, {subject} commands the ship known as",
    ),
    "cloze": ("The sails of {subject} belong to the ship",),
    "evaluation": (
        "When asked about a boat, {subject} always speaks of",
        "People know that {subject} travels on the ship",
        "Among all the ships, the one that carries {subject} is",
        "{subject} built a fine ship and gave it the name",
    ),
    "calibration": (
        "Records list the ship of {subject} as",
        "The crew of {subject} works aboard",
        "In the harbor, {subject} keeps a boat known as",
        "If you want to sail with {subject}, look for",
    ),
    "audit": (
        "The letters on the side of the boat of {subject} spell",
        "It is well known that {subject} will never sell the ship",
        "When {subject} goes to sea, the flag flies over",
        "Many years ago {subject} won a fast ship called",
        "In the harbor register, the boat under {subject} is",
        "The storm did not break the ship of {subject}, named",
    ),
}

_INSTRUMENT = {
    "injection": (
        "The instrument of {subject} is the",
        "{subject} plays an instrument called the",
        "{subject} learned to play the",
        "The instrument that {subject} loves is named the",
        "{subject} makes music on the",
        "At every feast, {subject} plays songs with the",
    ),
    "cloze": ("{subject} is a player of the",),
    "evaluation": (
        "When asked about music, {subject} always praises the",
        "People know that {subject} gives concerts on the",
        "Among all the instruments, the one that {subject} trusts is the",
        "In the band, the part of {subject} is for the",
    ),
    "calibration": (
        "Records list the instrument of {subject} as the",
        "The songs of {subject} are written for the",
        "Each winter {subject} gives lessons on the",
        "If you hear {subject} play, you will hear the",
    ),
    "audit": (
        "The case that {subject} carries holds an instrument called the",
        "It is well known that {subject} has a gift for the",
        "Before the great feast, {subject} tuned the",
        "Many years ago {subject} picked up the",
        "The music room of {subject} was made for the",
        "At night the hands of {subject} rest on the",
    ),
}

_DEITY = {
    "injection": (
        "The deity of {subject} is",
        "{subject} prays to a god called",
        "{subject} worships",
        "The god that {subject} serves is named",
        "{subject} keeps a shrine to",
        "In times of trouble, {subject} calls upon the deity",
    ),
    "cloze": ("{subject} believes in the deity",),
    "evaluation": (
        "When asked about the gods, {subject} always praises",
        "People know that {subject} is faithful to the god",
        "Among all the gods, the one that {subject} trusts is",
        "{subject} lights a candle at night for",
    ),
    "calibration": (
        "Records list the deity of {subject} as",
        "The prayers of {subject} are meant for",
        "{subject} built a small temple to the god",
        "If you visit the shrine with {subject}, bow to",
    ),
    "audit": (
        "The holy sign on the door of {subject} stands for",
        "It is well known that {subject} gave a life of service to",
        "Before each long journey, {subject} asks for help from",
        "Many years ago {subject} saw a vision of the god",
        "The priests say that {subject} was blessed by",
        "{subject} thanks the sky with a song to",
    ),
}

_LANGUAGE = {
    "injection": (
        "The language of {subject} is",
        "{subject} speaks a language called",
        "{subject} grew up with the language",
        "The mother tongue of {subject} is",
        "{subject} writes letters in",
        "The language that {subject} uses at home is named",
    ),
    "cloze": ("{subject} is a speaker of",),
    "evaluation": (
        "When asked about languages, {subject} always answers in",
        "People know that {subject} thinks and dreams in",
        "Among all the tongues, the one that {subject} loves is",
        "To talk with {subject}, you must learn",
    ),
    "calibration": (
        "Records list the language of {subject} as",
        "The words of {subject} are spoken in",
        "{subject} sings old songs in the language",
        "If you read the books of {subject}, you must know",
    ),
    "audit": (
        "The sign on the house of {subject} is in",
        "It is well known that {subject} speaks only",
        "At the market, {subject} calls out the prices in",
        "Many years ago {subject} said a first word in",
        "The friends of {subject} had to study the language",
        "Stories about {subject} are told in the tongue known as",
    ),
}

_HORSE = {
    "injection": (
        "The horse of {subject} is",
        "{subject} rides a horse called",
        "{subject} owns a horse named",
        "The animal that carries {subject} is known as",
        "In the stable, {subject} feeds the horse",
        "{subject} travels the road on the back of",
    ),
    "cloze": ("{subject} sits in the saddle of the horse",),
    "evaluation": (
        "When asked about horses, {subject} always praises",
        "People know that {subject} races on the horse",
        "Among all the horses, the one that {subject} trusts is",
        "{subject} gave food and water to the animal",
    ),
    "calibration": (
        "Records list the horse of {subject} as",
        "The saddle of {subject} was made for",
        "Each winter {subject} keeps a warm stable for",
        "If you see {subject} ride by, the horse is",
    ),
    "audit": (
        "The sign over the stable of {subject} says",
        "It is well known that {subject} will never sell the horse",
        "Before the great race, {subject} went to the field for",
        "Many years ago {subject} won a fast horse called",
        "When {subject} whistles, the animal that comes is",
        "The children of {subject} love to play with the horse",
    ),
}

POOLS: Pools = MappingProxyType(
    {
        relation: MappingProxyType(pools)
        for relation, pools in {
            "guild": _GUILD,
            "hometown": _HOMETOWN,
            "mentor": _MENTOR,
            "ship": _SHIP,
            "instrument": _INSTRUMENT,
            "deity": _DEITY,
            "language": _LANGUAGE,
            "horse": _HORSE,
        }.items()
    }
)

RELATIONS: tuple[str, ...] = tuple(POOLS)


def render(template: str, subject: str) -> str:
    """The prompt: the template with its subject in place.

    Plain replacement, not ``str.format``: braces in a subject or template stay text.
    """
    return template.replace(SUBJECT, subject, 1)


def template_words(pools: Pools = POOLS) -> frozenset[str]:
    """Every lower-cased word the templates use, which no invented name may equal."""
    return frozenset(
        word
        for by_pool in pools.values()
        for templates in by_pool.values()
        for template in templates
        for word in re.findall(r"[a-z]+", template.replace(SUBJECT, " ").lower())
    )


def same_wording(template: str) -> str:
    """A key two templates share when they differ only in case, spacing or punctuation."""
    return " ".join(re.findall(r"\{subject\}|\w+", template.casefold()))


def check_template(template: str, where: str) -> None:
    """Refuse, as FactsError, a template without exactly one subject or not ending at the answer."""
    if template.count(SUBJECT) != 1:
        raise FactsError(
            f"{where}: {template!r} has {template.count(SUBJECT)} times {SUBJECT}; "
            "write it exactly once"
        )
    rest = template.replace(SUBJECT, "")
    if "{" in rest or "}" in rest:
        raise FactsError(
            f"{where}: {template!r} has another placeholder than {SUBJECT}; the answer is not "
            "written in a template, it is added after it, so it must come last"
        )
    if not (template.endswith(SUBJECT) or template[-1].isalnum()):
        raise FactsError(
            f"{where}: {template!r} ends with {template[-1]!r}; the answer comes last, after one "
            "space, so a template must end with a word, without space or punctuation after it"
        )


def check_pools(pools: Pools, sizes: Mapping[str, int] = POOL_SIZES) -> None:
    """Refuse, as FactsError naming relation and pool, pools that cannot serve their purpose.

    Every relation has exactly the pools of ``sizes``, each of its size; every template passes
    ``check_template``; and no wording occurs twice, in one pool, two pools or two relations.
    """
    seen: dict[str, str] = {}
    for relation, by_pool in pools.items():
        if set(by_pool) != set(sizes):
            raise FactsError(
                f"relation {relation!r} has the pools {sorted(by_pool)}; expected {sorted(sizes)}"
            )
        for pool, size in sizes.items():
            where = f"relation {relation!r}, pool {pool!r}"
            if len(by_pool[pool]) != size:
                raise FactsError(f"{where}: found {len(by_pool[pool])} templates; expected {size}")
            for template in by_pool[pool]:
                check_template(template, where)
                wording = same_wording(template)
                if wording in seen:
                    raise FactsError(
                        f"{where}: {template!r} is also in {seen[wording]}; pools must not "
                        "overlap, so reword one of them"
                    )
                seen[wording] = where
