"""The official client gets the answers of the library, streamed and whole, and errors as its own exceptions."""

from typing import Any

import openai
import pytest

from specruntime import Completion, SamplingParams, complete
from specruntime.text.codec import TextCodec
from tests.runtime.server.conftest import Running, Serve

MODEL = "tiny-random"
MESSAGES: list[Any] = [{"role": "user", "content": "the quick brown fox"}]


def codec_of(server: Running) -> TextCodec:
    codec = server.bundle.tokenizer
    assert codec is not None
    return codec


def expected(server: Running, ids: list[int], **options: Any) -> Completion:
    """The same answer from a session of its own, without drafts."""
    session = server.bundle.new_session(speculate=False)
    answer = complete(session, ids, SamplingParams(**options), codec_of(server))
    session.close()
    return answer


def test_a_chat_is_the_answer_of_the_library(tiny_server: Running) -> None:
    answer = tiny_server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0.8, top_p=0.9, seed=5
    )
    codec = codec_of(tiny_server)
    ids = codec.chat(MESSAGES)
    alone = expected(tiny_server, ids, max_tokens=24, temperature=0.8, top_p=0.9, seed=5)
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == ("length" if alone.finish_reason == "length" else "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == len(alone.token_ids)
    assert answer.usage.total_tokens == len(ids) + len(alone.token_ids)


def test_usage_tells_what_of_the_prompt_was_cached(tiny_server: Running) -> None:
    """The second prompt is the first with its answer and a further question; both answers are a fresh session's."""
    first = ask(tiny_server, MESSAGES)
    said = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}]
    second = ask(tiny_server, [*said, {"role": "user", "content": "And then?"}])
    for answer in (first, second):
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert (answer.usage.prompt_tokens_details.cached_tokens or 0) < answer.usage.prompt_tokens
    codec = codec_of(tiny_server)
    shared = len(codec.chat(MESSAGES)) - 10  # the end of a template's rendering may differ
    assert second.usage.prompt_tokens_details.cached_tokens > shared > 10
    again = ask(tiny_server, MESSAGES)
    assert again.choices[0].message.content == first.choices[0].message.content


def ask(server: Running, messages: list[Any]) -> Any:
    return server.client().chat.completions.create(
        model=MODEL, messages=messages, max_completion_tokens=12, temperature=0
    )


def test_a_streamed_chat_adds_up_and_tells_its_usage(tiny_server: Running) -> None:
    client = tiny_server.client()
    options: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[0].delta.role == "assistant" and all(part.delta.role is None for part in parts[1:])
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_with_logprobs(tiny_server: Running) -> None:
    ids = codec_of(tiny_server).encode("abcabc")
    alone = expected(tiny_server, ids, max_tokens=12, logprobs=2, ignore_eos=True)
    answer = tiny_server.client().completions.create(
        model=MODEL,
        prompt="abcabc",
        max_tokens=12,
        temperature=0,
        logprobs=2,
        extra_body={"ignore_eos": True},
    )
    (choice,) = answer.choices
    assert choice.text == alone.text and choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert logprobs is not None and alone.logprobs is not None
    assert logprobs.token_logprobs == pytest.approx([entry.logprob for entry in alone.logprobs], abs=1e-3)
    assert logprobs.top_logprobs is not None and len(logprobs.top_logprobs) == 12
    of_ids = tiny_server.client().completions.create(
        model=MODEL, prompt=ids, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert of_ids.choices[0].text == alone.text


def test_a_chat_with_logprobs(tiny_server: Running) -> None:
    answer = tiny_server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert answer.usage is not None and len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= entry.top_logprobs[0].logprob
    said = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
    assert said.decode("utf-8", "replace") == answer.choices[0].message.content


def test_a_token_that_is_no_character_has_its_own_bytes(tiny_server: Running) -> None:
    for token, name in ((97, "a"), (200, "\\xc8")):  # of a tokenizer of bytes
        answer = tiny_server.client().chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=1, temperature=0, logprobs=True,
            logit_bias={str(token): 100},
        )  # fmt: skip
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert (logprobs.content[0].token, logprobs.content[0].bytes) == (name, [token])


def test_a_stop_string_ends_the_answer_before_it(tiny_server: Running) -> None:
    ids = codec_of(tiny_server).encode("abcabc")
    whole = expected(tiny_server, ids, max_tokens=40, ignore_eos=True).text
    stop = next(character for character in whole[3:] if character.isprintable() and character != "\ufffd")
    for form in (stop, [stop]):
        answer = tiny_server.client().completions.create(
            model=MODEL,
            prompt="abcabc",
            max_tokens=40,
            temperature=0,
            stop=form,
            extra_body={"ignore_eos": True},
        )
        assert answer.choices[0].text == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_seeds_repeat_and_requests_without_one_differ(tiny_server: Running) -> None:
    def answer(seed: int | None) -> str:
        seeded: Any = {} if seed is None else {"seed": seed}
        made = tiny_server.client().completions.create(
            model=MODEL, prompt="abc", max_tokens=16, extra_body={"ignore_eos": True}, **seeded
        )
        return str(made.choices[0].text)

    assert answer(4) == answer(4)
    assert len({answer(None) for _ in range(4)}) > 1


def test_authors_tell_drafted_tokens_from_the_targets_own(tiny_server: Running) -> None:
    options: Any = {"model": MODEL, "prompt": "abcabc", "max_tokens": 30, "temperature": 0}
    body = {"include_authors": True, "ignore_eos": True}
    client = tiny_server.client()
    drafted: Any = client.completions.create(**options, extra_body=body).model_extra
    plain: Any = client.completions.create(**options, extra_body={**body, "speculate": False})
    tokens = drafted["specruntime"]["tokens"]
    assert {token["author"] for token in tokens} >= {"accepted", "correction"}
    assert {token["author"] for token in plain.model_extra["specruntime"]["tokens"]} == {"target"}
    assert [token["id"] for token in tokens] == [t["id"] for t in plain.model_extra["specruntime"]["tokens"]]
    assert "".join(token["text"] for token in tokens) == plain.choices[0].text
    assert drafted["specruntime"]["figures"]["tokens"] == 30


def test_models_are_listed_and_named(tiny_server: Running) -> None:
    client = tiny_server.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "specruntime"


def test_errors_are_the_clients_own_exceptions(tiny_server: Running, serve: Serve) -> None:
    client = tiny_server.client()
    cases: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "gpt-4"}),
        (openai.UnprocessableEntityError, {"temperature": 3}),
        (openai.UnprocessableEntityError, {"n": 17}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "x" * 4000}]}),
        (openai.BadRequestError, {"top_logprobs": 2}),
        (openai.BadRequestError, {"extra_body": {"min_tokens": 5, "max_tokens": 2}}),
    ]
    for error, fields in cases:
        with pytest.raises(error) as caught:
            client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
        assert caught.value.type == "invalid_request_error" and caught.value.body
    locked = serve(api_keys=("secret",))
    for path in (locked.client("wrong"), locked.client("none")):
        with pytest.raises(openai.AuthenticationError):
            path.models.list()
    assert [model.id for model in locked.client("secret").models.list()] == ["scripted"]
