"""`/tokenize` and `/detokenize`, as vLLM has them: the ids that a prompt or a chat becomes, and the text of ids."""

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, Field, NonNegativeInt

from specruntime.chat import chat_prompt, offered
from specruntime.errors import InvalidArgument
from specruntime.server.neutral import ClosedBody, Neutral
from specruntime.server.problems import Problem
from specruntime.server.schema import ChatMessage, TokenId
from specruntime.server.tool_schema import Tool
from specruntime.text.codec import TextCodec

_OPEN = "a chat is rendered as it is for an answer"


class TokenizeRequest(ClosedBody):
    """POST /tokenize: of `prompt` or `messages` one."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    add_generation_prompt: Annotated[Any, Neutral(True, why=_OPEN)] = None
    continue_final_message: Annotated[Any, Neutral(False, why=_OPEN)] = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own; left out, of a prompt it does, and of a chat the template has them all."""
    return_token_strs: bool | None = None
    """Adds each token as its vocabulary names it."""


class DetokenizeRequest(ClosedBody):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class Tokens(BaseModel):
    count: NonNegativeInt
    max_model_len: NonNegativeInt
    tokens: list[NonNegativeInt]
    token_strs: list[str] | None


class Text(BaseModel):
    prompt: str


async def tokenize(asked: TokenizeRequest, codec: TextCodec | None, capacity: int) -> dict[str, Any]:
    """Raise `Problem` unless one of prompt and messages is given, and `InvalidArgument` without a tokenizer."""
    if (asked.prompt is None) == (asked.messages is None):
        raise Problem(400, "expected one of prompt and messages", parameter="prompt")
    if asked.prompt is not None and asked.tools:
        raise Problem(400, "tools are given with a prompt, expected messages", parameter="tools")
    known = _require_codec(codec)
    ids = await asyncio.to_thread(_ids, asked, known)
    names = [known.token_name(token) for token in ids] if asked.return_token_strs else None
    return {"count": len(ids), "max_model_len": capacity, "tokens": ids, "token_strs": names}


async def detokenize(asked: DetokenizeRequest, codec: TextCodec | None) -> dict[str, Any]:
    """Raise `InvalidArgument` without a tokenizer."""
    known = _require_codec(codec)
    return {"prompt": await asyncio.to_thread(known.decode, asked.tokens, skip_special_tokens=False)}


def _ids(asked: TokenizeRequest, codec: TextCodec) -> list[int]:
    if asked.prompt is not None:
        return codec.encode(asked.prompt, add_special_tokens=asked.add_special_tokens is not False)
    messages = [message.as_mapping() for message in asked.messages or ()]
    offer = offered([tool.model_dump(exclude_none=True) for tool in asked.tools or ()])
    return chat_prompt(codec, messages, offer, add_special_tokens=asked.add_special_tokens is True).ids


def _require_codec(codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise InvalidArgument("this bundle has no tokenizer: it takes and gives token ids only")
    return codec
