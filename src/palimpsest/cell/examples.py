"""Training examples as the texts that a model was trained on: chat template, loss and packing."""

from collections.abc import Iterator, Sequence
from typing import Any

from palimpsest.cell.frame import find_frame, render_chats
from palimpsest.cell.texts import TrainingExamples
from palimpsest.config.commands import ExampleRecipe
from palimpsest.config.sections import Prompt
from palimpsest.errors import FactsError
from palimpsest.facts.examples import ExampleFile, Row, row_messages, row_texts
from palimpsest.facts.general import Text
from palimpsest.models.checkpoint import Outline
from palimpsest.models.tokenizer import token_lengths
from palimpsest.text import shown_path


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
    if not recipe.pack:
        return TrainingExamples(tuple(texts), recipe, tuple(answers))
    if recipe.loss == "completion":
        raise FactsError("pack: joined rows have no single completion; use --loss all")
    packed = pack_texts(known, texts, recipe.pack)
    return TrainingExamples(packed, recipe, (0,) * len(packed))


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


def pack_texts(known: Outline, texts: Sequence[Text], limit: int) -> tuple[Text, ...]:
    """Return whole rows of a set joined by the end-of-text token, up to ``limit`` tokens each."""
    end = known.tokenizer.eos_token or "\n"
    sized = list(zip(texts, token_lengths(known.tokenizer, [text.text for text in texts])))
    packed: list[Text] = []
    for part in dict.fromkeys(text.set for text in texts):
        joined, length = "", 0
        for text, size in sized:
            if text.set != part:
                continue
            tokens = size + 1
            if joined and length + tokens > limit:
                packed.append(Text(f"{part}/{len(packed)}", part, joined))
                joined, length = "", 0
            joined, length = joined + text.text + end, length + tokens
        packed.append(Text(f"{part}/{len(packed)}", part, joined))
    return tuple(packed)


def check_lengths(known: Outline, texts: Sequence[Text]) -> None:
    """Refuse a text that is longer than the model reads, or too short to predict a token of."""
    longest = getattr(known.config, "max_position_embeddings", None)
    for text, size in zip(texts, token_lengths(known.tokenizer, [text.text for text in texts])):
        if size < 2 or size > (longest or size):
            raise FactsError(
                f"train: {text.id} has {size} tokens; expected 2 to {longest or 'any'}, the "
                "positions of the model; cut it as it was cut for training"
            )
