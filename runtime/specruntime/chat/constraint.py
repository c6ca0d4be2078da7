"""The grammar of tool calls, for answers whose form is prescribed: `tool_choice` required or named, strict tools.

`call_grammar` is what a constraint engine needs; until one is plugged in here, `require_free` refuses such requests.
"""

import json
from collections.abc import Mapping
from typing import Any

from specruntime.chat.offer import ToolOffer
from specruntime.errors import InvalidArgument
from specruntime.tools.formats import Format


def require_free(offer: ToolOffer) -> None:
    """Raise `InvalidArgument` where the form of calls is prescribed: an answer may not have it."""
    if offer.constrained:
        raise InvalidArgument(
            "tool_choice required or of one function, and strict tools, prescribe the form of the answer, which is not "
            'supported yet: use tool_choice "auto", and leave strict out'
        )


def call_grammar(format: Format, offer: ToolOffer, template: str, tokens: Mapping[str, int]) -> str | None:
    """Return the Lark grammar, in the dialect of llguidance, of an answer of calls alone; None where none is known.

    `tokens` are the marks that are special tokens, by name: text of the same letters is not the same to the model.
    """
    several = offer.parallel and offer.name is None
    alternatives = [_call_schema(name, schema, format.arguments) for name, schema in offer.schemas.items()]
    one = {"anyOf": alternatives} if len(alternatives) > 1 else alternatives[0]
    if format.name == "hermes":
        mark, end = _mark("<tool_call>", tokens), _mark("</tool_call>", tokens)
        more = ' ("\\n" call)*' if several else ""
        return f'start: call{more}\ncall: {mark} "\\n" body "\\n" {end}\nbody: %json {json.dumps(one)}\n'
    if format.name == "llama":
        more = ' ("; " call)*' if several else ""
        return f"start: call{more}\ncall: %json {json.dumps(one)}\n"
    if format.name == "mistral" and "[ARGS]" in template:
        return _mistral_grammar(offer, tokens, several=several)
    if format.several is None:
        return None
    limits = {"minItems": 1} if several else {"minItems": 1, "maxItems": 1}
    array = {"type": "array", "items": one, **limits}
    return f"start: {_mark(format.marks[0], tokens)} body\nbody: %json {json.dumps(array)}\n"


def _mistral_grammar(offer: ToolOffer, tokens: Mapping[str, int], *, several: bool) -> str:
    rules = [
        f"call_{index}: {json.dumps(name)} {_mark('[ARGS]', tokens)} %json {json.dumps(_object(schema))}"
        for index, (name, schema) in enumerate(offer.schemas.items())
    ]
    any_call = " | ".join(f"call_{index}" for index in range(len(rules)))
    more = "+" if several else ""
    return "\n".join(
        [f"start: call{more}", f"call: {_mark('[TOOL_CALLS]', tokens)} ({any_call})", *rules, ""]
    )


def _call_schema(name: str, schema: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, arguments: _object(schema)},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}


def _mark(text: str, tokens: Mapping[str, int]) -> str:
    return f"<[{tokens[text]}]>" if text in tokens else json.dumps(text)
