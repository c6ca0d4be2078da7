"""Prompts as token ids, by the target's own tokenizer and chat template."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from specexport.checkpoint import Checkpoint
from specexport.errors import TrainingRefused
from specexport.tokenizer.files import describe_tokenizer
from specexport.vocabulary import TOKENIZER_FILE
from specruntime.text import TextCodec

_MARK = "\u2402"  # a character no template writes


@dataclass(frozen=True)
class PromptCodec:
    """A target's tokenizer: prompts as a bundle reads them, and the inside of the chat template's user turn."""

    codec: TextCodec
    tokenizer: Tokenizer

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "PromptCodec":
        """Raises `TrainingRefused` for a checkpoint without a tokenizer."""
        if checkpoint.tokenizer is None:
            raise TrainingRefused(f"{checkpoint.name}: has no tokenizer, expected one to read prompts with")
        place = checkpoint.tokenizer
        spec = describe_tokenizer(place.parent, place.name)
        return cls(TextCodec.open(place.parent, spec), Tokenizer.from_file(str(place / TOKENIZER_FILE)))

    def encode(self, prompt: str) -> tuple[int, ...]:
        """In the chat template where there is one."""
        if self.codec.has_chat_template:
            return tuple(self.codec.chat([{"role": "user", "content": prompt}]))
        return tuple(self.codec.encode(prompt))

    def begin_user_turn(self, text: str) -> tuple[int, ...]:
        """Ids of the template up to where a user speaks, and of `text`, with which the user begins.

        Raises `TrainingRefused` where there is no template to tell a model that a user speaks.
        """
        if not self.codec.has_chat_template:
            raise TrainingRefused(
                "found a target without a chat template, expected an instruct model; write the prompts yourself"
            )
        opening, found, _ = self.codec.render_chat([{"role": "user", "content": _MARK}]).partition(_MARK)
        if not found:
            raise TrainingRefused(
                "found a chat template that changes a user's text, expected it as it is; write the prompts yourself"
            )
        return tuple(self.tokenizer.encode(opening + text, add_special_tokens=False).ids)

    @property
    def special_ids(self) -> tuple[int, ...]:
        added = self.tokenizer.get_added_tokens_decoder()
        return tuple(index for index, token in added.items() if token.special)
