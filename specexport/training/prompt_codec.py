"""Prompts as token ids, by the target's own tokenizer and chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from specexport.checkpoints.loading import Checkpoint
from specexport.errors import TrainingRefused
from specexport.tokenizer.files import TOKENIZER_FILE, describe_tokenizer
from specexport.training.prompts_file import Conversation
from specruntime.errors import InvalidArgument
from specruntime.text.chat_template import Message
from specruntime.text.codec import TextCodec

_MARK = "\u2402"  # a character no template writes


@dataclass(frozen=True)
class PromptCodec:
    """A target's tokenizer: prompts as a bundle reads them, and the inside of the chat template's user turn."""

    codec: TextCodec
    tokenizer: Tokenizer

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "PromptCodec":
        """Raise `TrainingRefused` for a checkpoint without a tokenizer."""
        return cls.open(checkpoint.name, checkpoint.tokenizer)

    @classmethod
    def open(cls, name: str, place: Path | None) -> "PromptCodec":
        """Return the tokenizer in the directory `place`, of the checkpoint `name`. Raises as `of`."""
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

        Where it writes none, the first of `end_ids`. An answer that holds an end token itself ends there. Raises
        `TrainingRefused` with the conversation's place where prompt and answer cannot be separated.
        """
        messages = conversation.messages
        *asked, last = messages
        place = conversation.place
        if self.codec.has_chat_template:
            prompt, answer = self._in_template(asked, messages, place)
        else:
            question = asked[0]["content"]
            if [message["role"] for message in asked] != ["user"] or not isinstance(question, str):
                raise TrainingRefused(
                    f"{place}: found a target without a chat template and messages of several turns or parts, expected "
                    "one text of the user and its answer"
                )
            prompt = tuple(self.codec.encode(question))
            answer = tuple(self.tokenizer.encode(last["content"], add_special_tokens=False).ids)
        end = next((position for position, index in enumerate(answer) if index in end_ids), None)
        if end == 0:
            raise TrainingRefused(f"{place}: the answer begins with the token that ends it, expected a text")
        return prompt, (*answer, *end_ids[:1]) if end is None else answer[: end + 1]

    def _in_template(
        self, asked: Sequence[Message], messages: Sequence[Message], place: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the prompt as a bundle reads it, and of what the template writes after it."""
        try:
            opening = self.codec.render_chat(asked)
            text = self.codec.render_chat(messages, add_generation_prompt=False)
            prompt, whole = self._ids(opening), self._ids(text)
        except InvalidArgument as error:
            raise TrainingRefused(f"{place}: found messages that the target does not take: {error}") from None
        if not text.startswith(opening):
            raise TrainingRefused(
                f"{place}: found a chat template that writes a conversation with its answer differently from one "
                "that waits for it, so the start of the answer cannot be found; give prompts alone"
            )
        if whole[: len(prompt)] == prompt:
            return prompt, whole[len(prompt) :]
        # The answer's first characters merge with the template's last: a model that waits for it has these alone.
        answer = self._ids(text[len(opening) :])
        if self._text(prompt + answer) != self._text(whole):
            raise TrainingRefused(
                f"{place}: the answer's first characters share a token with what the chat template writes before it, "
                "and read otherwise without; expected an answer that begins with other characters"
            )
        return prompt, answer

    def _ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a rendered text, which contains its special tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def begin_user_turn(self, text: str) -> tuple[int, ...]:
        """Ids of the template up to where a user speaks, and of `text`, with which the user begins.

        Raises `TrainingRefused` without a template that marks a user's turn.
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
