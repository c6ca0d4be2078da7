"""Prompts as token ids, by the target's own tokenizer and chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from specexport.checkpoints.loading import Checkpoint
from specexport.checkpoints.vocabulary import TOKENIZER_FILE
from specexport.errors import TrainingRefused
from specexport.tokenizer.files import describe_tokenizer
from specexport.training.prompts_file import Conversation
from specruntime.errors import InvalidArgument
from specruntime.text.codec import TextCodec

_MARK = "\u2402"  # a character no template writes


@dataclass(frozen=True)
class PromptCodec:
    """A target's tokenizer: prompts as a bundle reads them, and the inside of the chat template's user turn."""

    codec: TextCodec
    tokenizer: Tokenizer

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "PromptCodec":
        """Raises `TrainingRefused` for a checkpoint without a tokenizer."""
        return cls.open(checkpoint.name, checkpoint.tokenizer)

    @classmethod
    def open(cls, name: str, place: Path | None) -> "PromptCodec":
        """The tokenizer in the directory `place`, of the checkpoint `name`. Raises as `of`."""
        if place is None:
            raise TrainingRefused(f"{name}: has no tokenizer, expected one to read prompts with")
        spec = describe_tokenizer(place.parent, place.name)
        return cls(TextCodec.open(place.parent, spec), Tokenizer.from_file(str(place / TOKENIZER_FILE)))

    def encode(self, prompt: str) -> tuple[int, ...]:
        """In the chat template where there is one."""
        if self.codec.has_chat_template:
            return tuple(self.codec.chat([{"role": "user", "content": prompt}]))
        return tuple(self.codec.encode(prompt))

    def encode_answered(
        self, conversation: Conversation, end_ids: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the prompt and of the answer, the last message, up to the end token that the template writes after it.

        Where it writes none, the first of `end_ids`. Raises `TrainingRefused` with the conversation's place where
        prompt and answer cannot be separated.
        """
        messages = conversation.messages
        *asked, last = messages
        place = conversation.place
        if self.codec.has_chat_template:
            try:
                prompt = tuple(self.codec.chat(asked))
                whole = tuple(self.codec.chat(messages, add_generation_prompt=False))
            except InvalidArgument as error:
                raise TrainingRefused(
                    f"{place}: found messages that the target does not take: {error}"
                ) from None
            if whole[: len(prompt)] != prompt:
                raise TrainingRefused(
                    f"{place}: found a chat template that writes a conversation with its answer differently from one "
                    "that waits for it, so where the answer begins cannot be told; give prompts alone"
                )
            answer = whole[len(prompt) :]
        else:
            question = asked[0]["content"]
            if [message["role"] for message in asked] != ["user"] or not isinstance(question, str):
                raise TrainingRefused(
                    f"{place}: found a target without a chat template and messages of several turns or parts, expected "
                    "one text of the user and its answer"
                )
            prompt = tuple(self.codec.encode(question))
            answer = tuple(self.tokenizer.encode(last["content"], add_special_tokens=False).ids)
        ends = [position for position, index in enumerate(answer) if index in end_ids]
        return prompt, answer[: ends[-1] + 1] if ends else (*answer, *end_ids[:1])

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
