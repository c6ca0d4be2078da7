"""The target's answers to prompts, decoded here in PyTorch; what was answered before is not asked again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from specexport.training.decoding import Request, SlotDecoder
from specexport.training.dialogues import Dialogue, append_dialogues, is_held_out, read_dialogues

_DRAWN_OF_4 = 1  # answers that are drawn, of four: greedy ones alone never show what a warm answer looks like
_TEMPERATURE = 0.7


def answer_prompts(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    path: Path,
    *,
    end_ids: Sequence[int],
    answer_tokens: int,
    seed: int = 0,
    slots: int = 96,
    progress: Callable[[int, int], None] = lambda answered, asked: None,
) -> list[Dialogue]:
    """The dialogues of `prompts` in `path`, which gets those it lacks. Held-out prompts are answered greedily.

    Each answer is as if all had been given now: one that is longer than `answer_tokens` is cut, a prompt whose answer a
    smaller limit had cut is answered again, and its last answer counts. `progress` gets how many prompts have their
    answer, of how many.
    """
    wanted = set(prompts)
    known = {
        dialogue.prompt_ids
        for dialogue in read_dialogues(path)
        if len(dialogue.answer_ids) >= answer_tokens or dialogue.answer_ids[-1] in end_ids
    }
    missing = [prompt for prompt in prompts if prompt not in known]
    answered = len(wanted & known)
    progress(answered, len(wanted))
    if missing:
        decoder = SlotDecoder(
            model,
            slots=min(slots, len(missing)),
            capacity=max(map(len, missing)) + answer_tokens,
            end_ids=tuple(end_ids),
            seed=seed,
        )
        for request, ids in decoder.decode(_requests(missing, answer_tokens)):
            append_dialogues(path, [Dialogue(request.prompt_ids, ids, request.temperature == 0)])
            answered += 1
            progress(answered, len(wanted))
    last = {dialogue.prompt_ids: dialogue for dialogue in read_dialogues(path)}
    return [
        replace(dialogue, answer_ids=dialogue.answer_ids[:answer_tokens])
        for prompt, dialogue in last.items()
        if prompt in wanted
    ]


def _requests(prompts: Sequence[tuple[int, ...]], answer_tokens: int) -> Iterator[Request]:
    for index, prompt in enumerate(prompts):
        drawn = index % 4 < _DRAWN_OF_4 and not is_held_out(prompt)
        yield Request(prompt, _TEMPERATURE if drawn else 0.0, answer_tokens)
