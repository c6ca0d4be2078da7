"""/tokenize and /detokenize give what answers are made from and what they are made into."""

from typing import Any

import pytest

from tests.runtime.server.conftest import Running, Serve
from tests.runtime.server.dictated import dictated
from tests.runtime.server.http import call, require_error
from tests.runtime.server.test_tool_calls import ASKED, TEMPLATES, WEATHER, client_of

CHAT: list[Any] = [{"role": "user", "content": "h\u00e9"}]


def post(server: Running, path: str, **body: Any) -> Any:
    status, answer, _ = call(server, "POST", path, body)
    assert status == 200, answer
    return answer


def test_a_prompt_and_its_ids(tiny_server: Running) -> None:
    found = post(tiny_server, "/tokenize", prompt="h\u00e9", model="tiny-random")
    codec = tiny_server.bundle.tokenizer
    assert codec is not None
    assert found == {"count": 3, "max_model_len": 256, "tokens": codec.encode("h\u00e9"), "token_strs": None}
    assert post(tiny_server, "/detokenize", tokens=found["tokens"]) == {"prompt": "h\u00e9"}
    named = post(tiny_server, "/tokenize", prompt="h", return_token_strs=True)
    assert named["token_strs"] == ["h"]
    assert post(tiny_server, "/tokenize", prompt="")["tokens"] == []


def test_a_chat_and_its_ids(tiny_server: Running) -> None:
    """Those that an answer follows; their text has the special tokens."""
    found = post(tiny_server, "/tokenize", messages=CHAT, return_token_strs=True)
    answer = client_of(tiny_server).chat.completions.create(
        model="tiny-random", messages=CHAT, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert found["tokens"] == answer.model_extra["prompt_token_ids"]
    text = post(tiny_server, "/detokenize", tokens=found["tokens"])["prompt"]
    assert text == "<|user|>h\u00e9<|end|><|assistant|>" and found["token_strs"][0] == "<|user|>"
    assert post(tiny_server, "/tokenize", prompt=text)["tokens"] == found["tokens"]


def test_tools_are_part_of_a_chat() -> None:
    with dictated(TEMPLATES["hermes"], "x") as (server, model):
        client_of(server).chat.completions.create(**ASKED)
        found = post(server, "/tokenize", messages=ASKED["messages"], tools=ASKED["tools"])
        assert found["tokens"] == model.works[-1].prompt.tolist()


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/tokenize", {}, 400, "one of prompt and messages"),
        ("/tokenize", {"prompt": "x", "messages": CHAT}, 400, "one of prompt and messages"),
        ("/tokenize", {"prompt": "x", "tools": [WEATHER]}, 400, "tools are given with a prompt"),
        ("/tokenize", {"messages": CHAT, "tools": [WEATHER]}, 400, "takes no tools"),
        (
            "/tokenize",
            {"messages": CHAT, "add_generation_prompt": False},
            422,
            "rendered as it is for an answer",
        ),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "not served here"),
        ("/tokenize", {"promt": "x"}, 422, "did you mean 'prompt'"),
        ("/detokenize", {"tokens": [-1]}, 422, "tokens"),
        ("/detokenize", {"tokens": "x"}, 422, "tokens"),
        ("/detokenize", {}, 422, "tokens"),
    ],
)
def test_other_requests_are_refused(
    tiny_server: Running, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    assert words in require_error(call(tiny_server, "POST", path, body), status)["message"]


def test_keys_and_limits_hold_here_too(serve: Serve) -> None:
    locked = serve(api_keys=("secret",), max_body_bytes=100)
    key = {"Authorization": "Bearer secret"}
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        require_error(call(locked, "POST", path, body), 401)
        assert "no tokenizer" in require_error(call(locked, "POST", path, body, key), 400)["message"]
        require_error(call(locked, "POST", path, {**body, "model": "x" * 100}, key), 413)
