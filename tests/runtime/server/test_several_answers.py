"""Several answers to a prompt, and several prompts in a request: each answer is that of a request of its own."""

from json import dumps
from typing import Any

import pytest

from tests.runtime.server.conftest import Running, Serve, wait_for
from tests.runtime.server.http import PROMPT, ask, call, completion, request_bytes, require_error
from tests.runtime.server.test_limits import Hold
from tests.runtime.server.test_tool_calls import client_of

MODEL = "tiny-random"
TEXT: dict[str, Any] = {
    "model": MODEL,
    "prompt": "abcabc",
    "max_tokens": 12,
    "extra_body": {"ignore_eos": True},
}
CHAT: dict[str, Any] = {
    "model": MODEL, "messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 12,
}  # fmt: skip


@pytest.mark.parametrize("chat", [True, False])
def test_answer_i_is_that_of_the_seed_plus_i(tiny_server: Running, chat: bool) -> None:
    """Whole and streamed; the prompt counts once."""
    client = client_of(tiny_server)
    make, asked = (client.chat.completions.create, CHAT) if chat else (client.completions.create, TEXT)
    whole = make(**asked, n=3, seed=7)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert [choice.seed for choice in whole.choices] == [7, 8, 9]
    texts = [choice.message.content if chat else choice.text for choice in whole.choices]
    singles = [make(**asked, seed=seed) for seed in (7, 8, 9)]
    assert texts == [one.choices[0].message.content if chat else one.choices[0].text for one in singles]
    assert len(set(texts)) == 3
    assert whole.usage.prompt_tokens == singles[0].usage.prompt_tokens
    assert whole.usage.completion_tokens == sum(one.usage.completion_tokens for one in singles)
    streamed = ["", "", ""]
    reasons: list[Any] = [None] * 3
    for chunk in make(**asked, n=3, seed=7, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            streamed[choice.index] += (choice.delta.content or "") if chat else choice.text
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert streamed == texts and reasons == [choice.finish_reason for choice in whole.choices]
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


def test_without_a_seed_one_is_drawn_for_the_first(tiny_server: Running) -> None:
    choices = client_of(tiny_server).completions.create(**TEXT, n=3).choices
    assert [choice.seed - choices[0].seed for choice in choices] == [0, 1, 2]


def test_several_prompts_are_answered_in_their_order(tiny_server: Running) -> None:
    client = client_of(tiny_server)
    found = client.completions.create(**{**TEXT, "prompt": ["abcabc", "xyz"]}, n=2, seed=3)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    for number, prompt in enumerate(("abcabc", "xyz")):
        alone = client.completions.create(**{**TEXT, "prompt": prompt}, n=2, seed=3)
        assert [choice.text for choice in found.choices[2 * number :][:2]] == [
            choice.text for choice in alone.choices
        ]
    codec = tiny_server.bundle.tokenizer
    assert codec is not None and found.usage.prompt_tokens == 9 and found.usage.completion_tokens == 48
    ids = client.completions.create(
        **{**TEXT, "prompt": [codec.encode("abcabc"), codec.encode("xyz")]}, n=2, seed=3
    )
    assert [choice.text for choice in ids.choices] == [choice.text for choice in found.choices]


def test_the_best_are_those_of_the_highest_mean_logprob(tiny_server: Running) -> None:
    client = client_of(tiny_server)
    best = client.completions.create(**TEXT, best_of=5, n=2, seed=3)
    every = client.completions.create(**TEXT, n=5, seed=3, logprobs=0).choices
    means = {choice.text: sum(choice.logprobs.token_logprobs) / 12 for choice in every}
    ranked = sorted(means, key=lambda text: -means[text])
    assert [choice.text for choice in best.choices] == ranked[:2]
    assert [choice.index for choice in best.choices] == [0, 1] and best.choices[0].logprobs is None
    assert best.usage.completion_tokens == 60
    assert client.completions.create(**TEXT, best_of=1, seed=3).choices[0].text == every[0].text


@pytest.mark.parametrize("stream", [True, False])
def test_an_echo_begins_with_the_prompt(tiny_server: Running, stream: bool) -> None:
    client, codec = client_of(tiny_server), tiny_server.bundle.tokenizer
    assert codec is not None
    plain = client.completions.create(**TEXT, seed=3).choices[0].text
    for prompt in ("abcabc", codec.encode("abcabc")):
        made = client.completions.create(**{**TEXT, "prompt": prompt}, seed=3, echo=True, stream=stream)
        text = "".join(chunk.choices[0].text for chunk in made) if stream else made.choices[0].text
        assert text == "abcabc" + plain


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"n": 0}, 422, "n"),
        ({"n": 17}, 422, "n"),
        ({"best_of": 17}, 422, "best_of"),
        ({"best_of": 2, "n": 3}, 400, "best_of is 2 and n 3"),
        ({"best_of": 2, "stream": True}, 400, "the best are known at the end only"),
        ({"echo": True, "logprobs": 1}, 400, "those of a prompt are not computed"),
        ({"echo": True}, 400, "no tokenizer"),
        ({"prompt": [PROMPT] * 65}, 422, "prompt"),
        ({"prompt": [PROMPT] * 33, "n": 2}, 400, "asks for 66 answers, expected at most 64"),
        ({"prompt": [PROMPT, []]}, 422, "prompt"),
    ],
)
def test_limits(serve: Serve, fields: dict[str, Any], status: int, words: str) -> None:
    assert words in require_error(ask(serve(), **fields), status)["message"]


@pytest.mark.parametrize("batch", [1, 4])
def test_the_prompt_is_computed_once(serve: Serve, batch: int) -> None:
    """In batches too. Sixteen answers over four slots."""
    server = serve(slots=4, batch=batch, capacity=64)
    found = ask(server, prompt=list(range(40)), n=16, temperature=1, seed=5, return_token_ids=True)[1]
    assert len(found["choices"]) == 16 and len({tuple(each["token_ids"]) for each in found["choices"]}) > 8
    assert server.scheduler.totals.cached_tokens >= 15 * 38
    assert found["usage"]["prompt_tokens"] == 40
    one = ask(server, prompt=list(range(40)), temperature=1, seed=5 + 11, return_token_ids=True)[1]
    assert one["choices"][0]["token_ids"] == found["choices"][11]["token_ids"]


def test_each_answer_has_its_own_figures_next_to_it(serve: Serve) -> None:
    found = ask(serve(), n=2, include_authors=True)[1]
    assert "specruntime" not in found
    assert all(len(choice["specruntime"]["tokens"]) == 8 for choice in found["choices"])


def test_answers_that_do_not_all_fit_the_queue_are_refused_together(serve: Serve) -> None:
    server = serve(slots=1, queue_limit=2)
    hold = Hold(server)
    answer = ask(server, n=4)
    hold.release()
    assert require_error(answer, 429)["code"] == "queue_full"
    wait_for(lambda: server.scheduler.occupancy().active == 0)
    assert ask(server, n=3)[0] == 200
    assert server.scheduler.totals.ended["Cancelled"] == 3


def test_a_client_that_leaves_frees_every_slot(serve: Serve) -> None:
    server = serve(slots=2, queue_limit=8, capacity=4000)
    with server.connect() as connection:
        body = completion(n=6, stream=True, max_tokens=3900)
        connection.sendall(request_bytes(dumps(body).encode()))
        assert b"200 OK" in connection.recv(4096)
    wait_for(lambda: server.scheduler.occupancy().active == server.scheduler.occupancy().queued == 0)
    assert call(server, "GET", "/ready")[0] == 200
