"""What a client may ask for: the fields of the OpenAI API that are honoured, and those of this server beside them.

Owns names, types and ranges. A field that is known and cannot be honoured has its neutral value as the only one; every
other name is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
MAX_STOPS = 16
MAX_TOP = 20


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class StreamOptions(_Closed):
    include_usage: bool = False


class ResponseFormat(_Closed):
    type: Literal["text"]


class Sampling(_Closed):
    """What both kinds of request share."""

    model: str | None = None
    """The one that is served, where it is left out."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[TokenName, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None
    ) = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    n: Literal[1] | None = None
    # Beyond the API of OpenAI, named as in vLLM where it has them.
    top_k: TokenId | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    accept: Literal["match", "rejection"] | None = None
    speculate: bool | None = None
    """False decodes this answer without drafts."""
    include_authors: bool | None = None
    """Adds to each chunk or choice who wrote each token, and the figures of the request so far."""

    @property
    def top_logprobs_wanted(self) -> int | None:
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens


class TextPart(_Closed):
    type: Literal["text"]
    text: str


class ChatMessage(_Closed):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None
    refusal: None = None
    tool_calls: None = None

    def as_mapping(self) -> dict[str, Any]:
        """What chat templates take."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": text, **named}


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    response_format: ResponseFormat | None = None
    store: Literal[False] | None = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


DEFAULT_COMPLETION_TOKENS = 16
