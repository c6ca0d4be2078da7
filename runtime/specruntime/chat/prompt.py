"""Renders a chat with its tools, and finds out how the model will write its answer.

The chat template says both: it shows the marks of reasoning and of tool calls, and its rendering shows whether the
answer begins inside the reasoning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from specruntime.chat.messages import messages_for
from specruntime.chat.offer import ToolOffer, require_free
from specruntime.chat.reply import ReplyStyle
from specruntime.errors import InvalidArgument
from specruntime.sampling.reasoning import ReasoningMarks
from specruntime.text.chat_template import Message
from specruntime.text.codec import TextCodec
from specruntime.tools.formats import FORMATS, Format, format_of

REASONING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
"""Of Qwen, DeepSeek and SmolLM3; of Magistral; of others; of Seed-OSS, Command A and Kimi."""
_NO_TOOLS = ToolOffer()


@dataclass(frozen=True)
class ChatPrompt:
    """A chat as token ids, and what is known of its answer."""

    ids: list[int]
    style: ReplyStyle
    shown: Mapping[int, str]  # special tokens that are marks: part of the answer's text
    reasoning: ReasoningMarks | None
    offer: ToolOffer


def chat_prompt(
    codec: TextCodec,
    messages: Sequence[Message],
    offer: ToolOffer = _NO_TOOLS,
    *,
    add_special_tokens: bool = False,
) -> ChatPrompt:
    """Render a chat; the template writes the special tokens itself, unless the tokenizer is to add its own as well.

    Raises `InvalidArgument` for messages that the chat template refuses, and for tools that it does not take."""
    template = codec.chat_template or ""
    format = _format(template) if offer.open else None
    require_free(offer)
    given = messages_for(template, messages)
    text = codec.render_chat(given, tools=offer.shown if format is not None else None)
    marks = next((pair for pair in REASONING_MARKS if pair[1] in template), None)
    begun = marks is not None and _open(text, *marks)
    written = [*(marks or ()), *(format.parser.marks() if format is not None else ())]
    shown = codec.special_tokens(" ".join(written)) if written else {}
    style = ReplyStyle(
        marks, begun, None if format is None else format.parser, offer.schemas if format is not None else None,
        offer.parallel,
    )  # fmt: skip
    reasoning = None if marks is None else _reasoning(codec, marks, begun, shown)
    ids = codec.encode(text, add_special_tokens=add_special_tokens)
    return ChatPrompt(ids, style, shown, reasoning, offer)


def _format(template: str) -> Format:
    if "tools" not in template:
        raise InvalidArgument(
            "the chat template of this bundle takes no tools: leave `tools` out, or build from a checkpoint that was "
            "trained to call tools"
        )
    found = format_of(template)
    if found is None:
        names = ", ".join(dict.fromkeys(format.name for format in FORMATS))
        raise InvalidArgument(
            "the chat template of this bundle does not show how its model writes tool calls; the formats known here "
            f"are {names}"
        )
    return found


def _open(prompt: str, start: str, end: str) -> bool:
    """Whether the prompt ends inside the reasoning: with its start mark, and white space at most."""
    return prompt.rstrip().endswith(start) and not prompt.rstrip().endswith(end)


def _reasoning(
    codec: TextCodec, marks: tuple[str, str], begun: bool, shown: Mapping[int, str]
) -> ReasoningMarks:
    end_ids = tuple(codec.encode(marks[1], add_special_tokens=False))
    return ReasoningMarks(*marks, end_ids, begun, partial(_token_bytes, codec, shown))


def _token_bytes(codec: TextCodec, shown: Mapping[int, str], token: int) -> bytes:
    return shown[token].encode() if token in shown else codec.token_bytes(token) or b""
