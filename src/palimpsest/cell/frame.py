"""The text around questions and answers: none, a chat template's, or tags that a file names; and
training examples as the texts that a model was trained on.

A chat template is an untrusted program: transformers renders it in a sandbox, where it can compute
but reach nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.cell.texts import TrainingExamples
from palimpsest.config.commands import ExampleRecipe
from palimpsest.config.sections import Prompt
from palimpsest.errors import FactsError, ModelError, PlanError
from palimpsest.facts.examples import ExampleFile, Row, row_messages, row_texts
from palimpsest.facts.general import Text
from palimpsest.facts.questions import Question
from palimpsest.files import read_yaml
from palimpsest.models.checkpoint import Outline
from palimpsest.models.device import foreign
from palimpsest.models.encode import adds_start
from palimpsest.models.tokenizer import token_lengths
from palimpsest.text import shown_path

CHAT_DATE = "26 Jul 2024"
"""What Llama-3.x templates write where no date is known: never the day of the run."""
TEMPLATE_KEYS = (
    *("system_prompt", "date_string", "system_prompt_with_special_tokens"),
    *("user_start_tag", "user_end_tag", "asst_start_tag"),
)
_QUESTION, _ANSWER = "palimpsest-question", "palimpsest-answer"


@dataclass(frozen=True)
class Frame:
    """The text around a question and its answer, exactly as models were trained on it."""

    before: str
    between: str
    after: str

    @property
    def text(self) -> str:
        """The frame with names in the place of question and answer."""
        return f"{self.before}{{question}}{self.between}{{answer}}{self.after}"

    def put(self, questions: Iterable[Question]) -> tuple[Question, ...]:
        """Return the questions as they are asked and taught."""
        return tuple(
            replace(q, prompt=f"{self.before}{q.prompt}{self.between}", end=self.after)
            for q in questions
        )


def find_frame(tokenizer: Any, prompt: Prompt) -> Frame | None:
    """Return the frame that the settings ask for; None where questions are asked as they are."""
    tags = read_template(prompt)
    if not prompt.chat and not tags:
        return None
    end = tokenizer.eos_token or ""
    if tags and not tags["apply_chat_template"]:
        start = tags["system_prompt_with_special_tokens"] + tags["user_start_tag"]
        frame = Frame(start, tags["user_end_tag"] + tags["asst_start_tag"], end)
    else:
        turns = [("user", _QUESTION), ("assistant", _ANSWER)]
        messages = [{"role": role, "content": text} for role, text in turns]
        (text,) = render_chats(tokenizer, [messages], prompt)
        before, asked, rest = text.partition(_QUESTION)
        between, answered, after = rest.partition(_ANSWER)
        if not asked or not answered:
            raise ModelError(
                "chat: the chat template does not write question and answer; expected one that "
                "takes a turn of the user and of the assistant"
            )
        frame = Frame(before, between, after if after.endswith(end) else after + end)
    return replace(frame, before=_without_start(tokenizer, frame.before))


def render_chats(
    tokenizer: Any, conversations: Sequence[Sequence[dict[str, str]]], prompt: Prompt
) -> list[str]:
    """Return each conversation as the chat template writes it; its first token is in the text.

    A template may ask for the day of the run; it gets the date of the settings.
    """
    if not conversations:
        return []
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "chat: the tokenizer has no chat template; expected that of an instruct model; leave "
            "--chat out, or save the base with its template"
        )
    tags = read_template(prompt)
    system = prompt.system_prompt or tags.get("system_prompt", "")
    date = prompt.chat_date or tags.get("date_string", "") or CHAT_DATE
    turns = [{"role": "system", "content": system}] if system else []
    what = "chat: the chat template"
    with foreign(what, "one that takes these turns"):
        # transformers gives templates the clock; a macro of that name comes before it.
        dated = "{% macro strftime_now(form) %}{{ fixed_date }}{% endmacro %}{{ '' }}"
        texts: list[str] = tokenizer.apply_chat_template(
            [[*turns, *messages] for messages in conversations],
            chat_template=dated + tokenizer.get_chat_template(),
            tokenize=False,
            date_string=date,
            fixed_date=date,
        )
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{what} writes half a character (\\u{ord(error.object[error.start]):x}); expected "
            "text; leave --chat out, or save the base with another template"
        ) from error
    return texts


def read_template(prompt: Prompt) -> dict[str, Any]:
    """Return the template_args of the settings' file; empty where there is none."""
    if not prompt.prompt_file:
        return {}
    expected = "template_args of OpenUnlearning"
    found: Any = read_yaml(Path(prompt.prompt_file), expected)
    for key in ("model", "template_args"):
        found = found.get(key, found) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("apply_chat_template"), bool):
        raise PlanError(f"{prompt.prompt_file}: expected {expected}", key="prompt_file")
    tags = {key: found.get(key) or "" for key in TEMPLATE_KEYS}
    for key, value in tags.items():
        if not isinstance(value, str) or "${" in value:
            raise PlanError(
                f"{key} is {value!r} in {prompt.prompt_file}; expected text", key="prompt_file"
            )
    return {"apply_chat_template": found["apply_chat_template"] or prompt.chat, **tags}


def _without_start(tokenizer: Any, text: str) -> str:
    """Return a text without the token that the tokenizer adds of its own: it must stand once."""
    start = tokenizer.bos_token
    return text.removeprefix(start) if start and adds_start(tokenizer) else text


# -- training examples -----------------------------------------------------------------------------


def render_examples(
    known: Outline, file: ExampleFile, recipe: ExampleRecipe, prompt: Prompt
) -> TrainingExamples:
    """Return the texts of a file, as the settings say that they were trained on."""
    where = shown_path(file.path)
    texts: list[Text] = []
    answers: list[int] = []
    for row, asked, rest in _parts(known.tokenizer, file, prompt):
        if recipe.loss == "completion" and not asked:
            raise FactsError(
                f"{where} line {row.line}: loss: a text without a prompt has no completion; give "
                '"prompt" and "completion", or --loss all'
            )
        start = len(asked) if recipe.loss == "completion" else 0
        texts.append(Text(f"line {row.line}", row.set, asked + rest, start))
        answers.append(len(asked))
    return TrainingExamples(tuple(texts), recipe, tuple(answers))


def _parts(tokenizer: Any, file: ExampleFile, prompt: Prompt) -> Iterator[tuple[Row, str, str]]:
    """Yield each row with what comes before its answer, which may be empty, and the rest."""
    where = shown_path(file.path)
    talks = {row.line: row_messages(row, where) for row in file.rows if "messages" in row.values}
    written = dict(zip(talks, render_chats(tokenizer, list(talks.values()), prompt)))
    frame = find_frame(tokenizer, prompt)
    for row in file.rows:
        if row.line in talks:
            whole = written[row.line]
            begin = whole.rfind(talks[row.line][-1]["content"].strip())
            if begin < 0:
                raise FactsError(
                    f"{where} line {row.line}: the chat template does not write the last answer; "
                    "expected one that does; give the row as text"
                )
            yield row, whole[:begin], whole[begin:]
            continue
        asked, rest = row_texts(row, where)
        if frame is not None and asked:
            asked, rest = f"{frame.before}{asked}{frame.between}", f"{rest}{frame.after}"
        yield row, asked, rest


def check_lengths(known: Outline, texts: Sequence[Text]) -> None:
    """Refuse a text that is longer than the model reads, or too short to predict a token of."""
    longest = getattr(known.config, "max_position_embeddings", None)
    for text, size in zip(texts, token_lengths(known.tokenizer, [text.text for text in texts])):
        if size < 2 or size > (longest or size):
            raise FactsError(
                f"train: {text.id} has {size} tokens; expected 2 to {longest or 'any'}, the "
                "positions of the model; cut it as it was cut for training"
            )
