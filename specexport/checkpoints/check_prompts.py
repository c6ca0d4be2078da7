"""Validates a bundle's check prompts when it is built rather than when it is checked."""

from pathlib import Path
from typing import Protocol

from specexport.errors import CheckpointUnsupported
from specexport.graph.files import GraphFacts
from specexport.recipe.schema import Check, Prompt
from specexport.recipe.weights import RunningText
from specexport.tokenizer.files import describe_tokenizer
from specruntime.errors import SpecError
from specruntime.text.codec import TextCodec


class Answering(Protocol):
    """A model that prompts are for: a canonical graph, or a checkpoint before its weights are read."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Path | None: ...

    @property
    def facts(self) -> GraphFacts: ...


def require_usable_prompts(check: Check, target: Answering) -> None:
    """Raise `CheckpointUnsupported` naming the first prompt that the target of the bundle could not answer."""
    codec = open_codec(target)
    if codec is None and any(isinstance(prompt, str) for prompt in check.prompts):
        raise CheckpointUnsupported(
            f"found text, but {target.name} has no tokenizer; write the prompts as lists of token ids",
            key="check.prompts",
        )
    for number, prompt in enumerate(check.prompts):
        place = f"check.prompts[{number}]"
        _require_fitting(place, _encode(place, prompt, codec, check, target), check, target)


def open_codec(target: Answering) -> TextCodec | None:
    """Return the target's tokenizer; None where it has none."""
    if (place := target.tokenizer) is None:
        return None
    return TextCodec.open(place.parent, describe_tokenizer(place.parent, place.name))


def encode_text(key: str, text: RunningText, target: Answering) -> list[int]:
    """Return the tokens of a running text that the recipe gives under `key`.

    Raises `CheckpointUnsupported` for a checkpoint without tokenizer or a text of less than two tokens.
    """
    codec = open_codec(target)
    if codec is None:
        part = key.partition(".")[0]
        raise CheckpointUnsupported(
            f"found text, but {target.name} has no tokenizer; leave {part} out", key=f"{key}.text"
        )
    ids = codec.encode(text.text)[: text.tokens]
    if len(ids) < 2:
        raise CheckpointUnsupported(
            f"found {len(ids)} tokens, expected at least 2; write more", key=f"{key}.text"
        )
    return ids


def _encode(
    place: str, prompt: Prompt, codec: TextCodec | None, check: Check, target: Answering
) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    assert codec is not None, "refused above"
    if not check.chat:
        return codec.encode(prompt)
    if not codec.has_chat_template:
        raise CheckpointUnsupported(
            f"found true, but {target.name} has no chat template; set check.chat: false", key="check.chat"
        )
    try:
        return codec.chat([{"role": "user", "content": prompt}])
    except SpecError as error:
        raise CheckpointUnsupported(f"{error}; change it, or set check.chat: false", key=place) from None


def _require_fitting(place: str, ids: list[int], check: Check, target: Answering) -> None:
    size, capacity = target.facts.vocab_size, target.facts.capacity
    if not ids:
        raise CheckpointUnsupported(
            "found text without any token, expected at least one; write more", key=place
        )
    if (outside := next((token for token in ids if token >= size), None)) is not None:
        raise CheckpointUnsupported(
            f"found token id {outside}, expected 0..{size - 1}, the vocabulary of {target.name}; correct it",
            key=place,
        )
    if len(ids) > (most := capacity - check.max_new_tokens):
        raise CheckpointUnsupported(
            f"found {len(ids)} tokens, expected at most {most}: capacity {capacity} less "
            f"check.max_new_tokens {check.max_new_tokens}; shorten it or raise capacity",
            key=place,
        )
