"""Defines the fields of requests, those of the OpenAI API and those that this server adds, and the shapes of responses.

Owns names, types and ranges of requests; the models of responses are for the OpenAPI document, and validate nothing.
A field that is known and cannot be honoured takes only the values that change nothing (`Neutral`), as clients dump
them; every other name is refused. docs/serving.md lists the fields.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specruntime.chat.offer import MAX_TOOLS
from specruntime.manifest.messages import UNSUPPORTED
from specruntime.sampling.params import MAX_ANSWERS
from specruntime.server.forms import Formed
from specruntime.server.neutral import ClosedBody, Neutral
from specruntime.server.tool_schema import Tool, ToolCall, ToolChoice

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""As in the API of OpenAI. A negative one is another name of the seed that is 2**63 more."""
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
MAX_STOPS = 16
MAX_TOP = 20
_FUNCTIONS = "deprecated: use tools and tool_choice"
MAX_PROMPTS = 64
_TEXT = "this server reads and writes text only"
_CACHE = "prompts that begin alike are reused without being asked to, while a slot holds them"
_REASONING = "reasoning is text, in reasoning_content"


class StreamOptions(ClosedBody):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Neutral(False, why="events are not padded")] = None


class PromptCacheOptions(ClosedBody):
    mode: Annotated[Any, Neutral("implicit", why=_CACHE)] = None
    ttl: Annotated[Any, Neutral("30m", why=_CACHE)] = None


class Sampling(Formed):
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
    user: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    # Beyond the API of OpenAI, named as in vLLM where it has them.
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1 are off."""
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
    return_token_ids: bool | None = None
    """Adds the token ids of prompt and answer."""

    @property
    def top_logprobs_wanted(self) -> int | None:
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def candidates(self) -> int:
        """How many answers of a prompt are made."""
        return self.n or 1


class TextPart(ClosedBody):
    type: Annotated[Any, Neutral("text", why=_TEXT, null=False)]
    text: str
    prompt_cache_breakpoint: Annotated[Any, Neutral(why=_CACHE)] = None


class ChatMessage(ClosedBody):
    """A message of any role. Clients send messages of answers back with all their fields."""

    # The document asks for what every role may have; an assistant's content may be left out as well.
    model_config = ConfigDict(json_schema_extra={"required": ["role", "content"]})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = Field(None, validate_default=True)
    """Null or left out for an assistant that said nothing, or only called tools."""
    name: str | None = None
    tool_call_id: str | None = None
    annotations: Annotated[Any, Neutral([], why=_TEXT)] = None
    audio: Annotated[Any, Neutral(why=_TEXT)] = None
    function_call: Annotated[Any, Neutral(why=_FUNCTIONS)] = None
    refusal: Annotated[Any, Neutral("", why="chat templates take content only")] = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    # The message classes of the official client's `parse` and of LiteLLM have these.
    parsed: Any = None
    """A label: what the client made of the content."""
    provider_specific_fields: Annotated[Any, Neutral({}, why="this server gives none")] = None
    reasoning_content: str | None = None
    """Of an assistant's message: chat templates decide whether the model is shown it again."""
    thinking_blocks: Annotated[Any, Neutral([], why=_REASONING)] = None

    @field_validator("content")
    @classmethod
    def _require_content(cls, content: Any, others: ValidationInfo) -> Any:
        if content is None and others.data.get("role", "assistant") != "assistant":
            raise PydanticCustomError(
                UNSUPPORTED, "text; only an assistant's content may be null or left out"
            )
        return content

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields that chat templates take, those that were given."""
        parts = self.content if isinstance(self.content, list) else ()
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in parts)
        optional: dict[str, Any] = {"name": self.name, "tool_call_id": self.tool_call_id}
        optional["reasoning_content"] = self.reasoning_content or None
        optional["tool_calls"] = [call.as_mapping() for call in self.tool_calls or ()] or None
        given = {name: value for name, value in optional.items() if value is not None}
        return {"role": self.role, "content": text, **given}


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    # Labels of a hosted service: any text passes and changes nothing.
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Annotated[Any, Neutral("in_memory", why=_CACHE)] = None
    audio: Annotated[Any, Neutral(why=_TEXT)] = None
    function_call: Annotated[Any, Neutral("none", "auto", why=_FUNCTIONS)] = None
    functions: Annotated[Any, Neutral([], why=_FUNCTIONS)] = None
    metadata: Annotated[Any, Neutral({}, why="requests are not stored")] = None
    modalities: Annotated[Any, Neutral(["text"], why=_TEXT)] = None
    moderation: Annotated[Any, Neutral(why="answers are not moderated")] = None
    parallel_tool_calls: bool | None = None
    prediction: Annotated[Any, Neutral(why="drafts come from the bundle")] = None
    reasoning_effort: Annotated[Any, Neutral(why="how long a model reasons is not controlled")] = None
    service_tier: Annotated[Any, Neutral("auto", "default", why="requests come first, first served")] = None
    store: Annotated[Any, Neutral(False, why="requests are not stored")] = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Beyond the API, as in vLLM: the most tokens of reasoning, whose end is forced then."""
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    verbosity: Annotated[Any, Neutral("medium", why="how much a model says is not controlled")] = None
    web_search_options: Annotated[Any, Neutral(why="this server does not search the web")] = None

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
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None
    """Begins each answer's text with its prompt."""
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    """Makes so many answers, and returns the `n` with the highest log-probability per token."""
    suffix: Annotated[Any, Neutral("", why="answers are not written to end before a text")] = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS

    @property
    def candidates(self) -> int:
        return self.best_of or self.n or 1

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of them, where there is one too."""
        prompt: Any = self.prompt
        several = isinstance(prompt, list) and not isinstance(prompt[0], int)
        return list(prompt) if several else [prompt]


DEFAULT_COMPLETION_TOKENS = 16


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every error, of every path."""

    error: ErrorFields


class State(BaseModel):
    status: str


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: NonNegativeInt
    owned_by: str


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class PromptTokensDetails(BaseModel):
    cached_tokens: NonNegativeInt


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: NonNegativeInt


class Usage(BaseModel):
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: NonNegativeInt
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None
    """Given where the chat template has marks of reasoning."""


class _Answer(BaseModel):
    id: str
    created: NonNegativeInt
    model: str
    choices: Annotated[list[dict[str, Any]], Field(min_length=1)]
    usage: Usage


class ChatAnswer(_Answer):
    object: Literal["chat.completion"]


class CompletionAnswer(_Answer):
    object: Literal["text_completion"]
