"""The text of a chat's answer as the OpenAI API has it: content, reasoning and tool calls, whole or in deltas."""

from collections.abc import Sequence

from specruntime.chat import Message, Reasoned, Reply
from specruntime.chat.reply import Part, whole_message
from specruntime.sampling.reasoning import ReasoningState
from specruntime.server.logprobs import Json
from specruntime.server.work import Prompt
from specruntime.serving.events import Delivery
from specruntime.tools.events import Arguments, CallBegun, CallBroken, CallEnded, Content


class AnswerText:
    """One answer. Fed its deliveries one by one (`grown`), or all at once (`message`)."""

    def __init__(self, prompt: Prompt) -> None:
        self.calls = 0  # tool calls that are whole
        self._reply = Reply(prompt.style)
        self._state = None if prompt.reasoning is None else ReasoningState(prompt.reasoning)
        self._reasoning_tokens = 0

    @property
    def reasoning_tokens(self) -> int | None:
        """How many tokens were reasoning, with its marks; None where nothing marks one."""
        return None if self._state is None else self._reasoning_tokens

    def grown(self, delivery: Delivery) -> list[Part]:
        """Return what a delivery makes certain."""
        self._count(delivery)
        parts = self._reply.push(delivery.delta.text)
        if delivery.last:
            parts += self._reply.finish()
        self.calls += sum(isinstance(part, CallEnded) for part in parts)
        return parts

    def message(self, deliveries: Sequence[Delivery]) -> Json:
        """Return the message of a whole answer."""
        for delivery in deliveries:
            self._count(delivery)
        text = "".join(delivery.delta.text for delivery in deliveries)
        message: Message = whole_message([*self._reply.push(text), *self._reply.finish()])
        self.calls = len(message.calls)
        return {**message.as_dict(), "refusal": None}

    def _count(self, delivery: Delivery) -> None:
        if self._state is not None:
            self._reasoning_tokens += self._state.feed(delivery.delta.tokens)


def delta_fields(parts: Sequence[Part]) -> Json:
    """Return the fields of a delta. Each call has one entry, since clients put entries together by their index."""
    content, reasoning, calls = "", "", dict[int, Json]()
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoned(text):
                reasoning += text
            case CallBegun(index, id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": id, "type": "function", "function": function}
            case Arguments(index, text):
                entry = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                entry["function"]["arguments"] += text
            case CallEnded() | CallBroken():  # what was sent of a broken call cannot be taken back
                pass
    fields: Json = {"content": content} if content else {}
    if reasoning:
        fields["reasoning_content"] = reasoning
    if calls:
        fields["tool_calls"] = list(calls.values())
    return fields
