"""Lets an instruct model write the prompts: given only its template's opening of the user turn, it asks.

What a model was tuned on is what it asks about, so its questions resemble those it will get.
"""

from collections.abc import Callable, Iterator, Sequence

from transformers import PreTrainedModel

from specexport.errors import TrainingRefused
from specexport.training.decoding import Request, SlotDecoder
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import Excluded
from specexport.training.target import require_plain_logits

QUESTION_TOKENS = 96
_SHORTEST = 4  # tokens
_TEMPERATURE = 0.95
_TRIES = 8  # per wanted question


def write_questions(
    model: PreTrainedModel,
    codec: PromptCodec,
    count: int,
    *,
    end_ids: Sequence[int],
    openings: Sequence[str] = ("",),
    excluded: Excluded,
    known: Sequence[str] = (),
    seed: int = 0,
    slots: int = 96,
    progress: Callable[[int], None] = lambda written: None,
) -> Iterator[str]:
    """`count` questions, in turn begun with each of `openings`; none is `known`, `excluded` or repeated.

    Only those whose ids are what the tokenizer makes of their text, so that an answer to the ids is one to the text.
    Raises `TrainingRefused` when the model finds no more of them, or as `require_plain_logits`.
    """
    require_plain_logits(model)
    begun = {codec.begin_user_turn(opening): opening for opening in openings}
    prefixes = list(begun)
    decoder = SlotDecoder(
        model,
        slots=min(slots, count),
        capacity=max(map(len, prefixes)) + QUESTION_TOKENS,
        end_ids=tuple(end_ids),
        banned=tuple(set(codec.special_ids) - set(end_ids)),
        seed=seed,
    )
    asked, written = set(known), 0
    requests = (
        Request(prefixes[turn % len(prefixes)], _TEMPERATURE, QUESTION_TOKENS)
        for turn in range(_TRIES * count)
    )
    for request, ids in decoder.decode(requests):
        *question, last = ids
        text = begun[request.prompt_ids] + codec.codec.decode(question)
        whole = last in end_ids and len(question) >= _SHORTEST
        if not whole or text in asked or text in excluded:
            continue
        if _reads_alike(codec, text, (*request.prompt_ids, *question)):
            asked.add(text)
            written += 1
            progress(written)
            yield text
            if written == count:
                return
    raise TrainingRefused(
        f"found {written} new questions in {_TRIES * count} tries, expected {count}; ask for fewer, or give "
        "--openings"
    )


def _reads_alike(codec: PromptCodec, text: str, ids: tuple[int, ...]) -> bool:
    return text == text.strip() and codec.begin_user_turn(text) == ids
