"""The target's answers to prompts, decoded here in PyTorch; what was answered before is not asked again."""

from collections.abc import Callable, Iterator, Sequence
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

    `progress` gets how many prompts have their answer, of how many.
    """
    wanted = set(prompts)
    known = {dialogue.prompt_ids for dialogue in read_dialogues(path)}
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
    return [dialogue for dialogue in read_dialogues(path) if dialogue.prompt_ids in wanted]


def _requests(prompts: Sequence[tuple[int, ...]], answer_tokens: int) -> Iterator[Request]:
    for index, prompt in enumerate(prompts):
        drawn = index % 4 < _DRAWN_OF_4 and not is_held_out(prompt)
        yield Request(prompt, _TEMPERATURE if drawn else 0.0, answer_tokens)
