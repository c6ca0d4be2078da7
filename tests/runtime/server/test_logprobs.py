"""Log-probabilities name each token by its own bytes, keep tokens apart, and point into the text that was sent.

Expected are the bytes that the vocabulary gives a token, and the forms of the OpenAI API.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from specruntime.generation import Delta
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.server.responses import AnswerShape
from specruntime.server.schema import ChatRequest, CompletionRequest
from specruntime.server.work import Prompt
from specruntime.serving.events import Delivery, Figures
from specruntime.stopping import FinishReason, StopChecker
from specruntime.text.codec import TextCodec
from tests.runtime.text.test_codec import open_codec, sentencepiece_like
from tests.runtime.text.test_text_after_a_prompt import byte_level_with_words, id_of

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 3}
TEXT: dict[str, Any] = {"prompt": "x", "logprobs": 3}


@pytest.fixture
def words(tmp_path: Path) -> TextCodec:
    return open_codec(tmp_path, sentencepiece_like(), template=None)


def deliveries(
    codec: TextCodec,
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    stop: str | None = None,
    rounds: Sequence[int] = (),
    top: Sequence[int] = (1, 2, 3),
) -> list[Delivery]:
    """What an answer of these tokens delivers, in rounds that end at `rounds` (each token alone when empty).

    Of each token 3 alternatives are the `top` ids.
    """
    stops = StopChecker(SamplingParams(stop=stop or (), max_tokens=len(tokens)), ())  # type: ignore[arg-type]
    decoder, found, reason = codec.stream(prompt), [], None
    ends = set(rounds or range(1, len(tokens) + 1))
    text, kept = "", []
    for number, token in enumerate(tokens, start=1):
        last = stops.is_last(token)
        verdict = stops.feed(token, decoder.push((token,)) + (decoder.flush() if last else ""))
        text, reason = text + verdict.text, verdict.finish_reason
        kept.append(TokenLogprobs(token, -0.5, tuple((other, -1.0 - i) for i, other in enumerate(top))))
        if number in ends or reason is not None:
            found.append(_delivery(text, kept, reason))
            text, kept = "", []
        if reason is not None:
            break
    return found


def _delivery(text: str, kept: list[TokenLogprobs], reason: FinishReason | None) -> Delivery:
    tokens = tuple(each.token for each in kept)
    figures = Figures(1, seed=7, tokens=len(tokens))
    return Delivery(Delta(text, tokens, tuple(kept), reason), tuple("target" for _ in tokens), figures)


def choice(
    codec: TextCodec | None, body: dict[str, Any], found: list[Delivery], prompt: Sequence[int] = (5,)
) -> Any:
    request = ChatRequest(**body) if "messages" in body else CompletionRequest(**body)
    return AnswerShape(request, [Prompt(list(prompt))], codec).whole([found])["choices"][0]


def ids_of(tokenizer: Tokenizer, *names: str) -> list[int]:
    return [id_of(tokenizer, name) for name in names]


def test_a_word_keeps_its_space(words: TextCodec) -> None:
    space, letter = ids_of(sentencepiece_like(), "\u2581", "a")
    found = deliveries(words, [letter], [space, letter], top=(space, letter, 2))
    completion = choice(words, TEXT, found, [letter])
    assert completion["text"] == " a"
    assert completion["logprobs"]["tokens"] == [" ", "a"]
    assert completion["logprobs"]["text_offset"] == [0, 1]
    entries = choice(words, CHAT, found, [letter])["logprobs"]["content"]
    assert [(each["token"], each["bytes"]) for each in entries] == [(" ", [32]), ("a", [97])]
    assert [each["token"] for each in entries[0]["top_logprobs"]] == [" ", "a", "\x01"]


def test_parts_of_a_character_are_its_bytes(words: TextCodec) -> None:
    tokenizer = sentencepiece_like()
    tokens = ids_of(tokenizer, "b", "<0xE2>", "<0x80>", "<0x99>", "c")
    found = deliveries(words, [tokens[0]], tokens, top=ids_of(tokenizer, "<0xE2>", "<0xE3>", "<0xE4>"))
    completion = choice(words, TEXT, found)
    assert completion["text"] == "b\u2019c"
    table = completion["logprobs"]
    assert table["tokens"] == ["b", "bytes:\\xe2", "bytes:\\x80", "bytes:\\x99", "c"]
    assert table["text_offset"] == [0, 1, 1, 1, 2]
    assert list(table["top_logprobs"][0]) == ["bytes:\\xe2", "bytes:\\xe3", "bytes:\\xe4", "b"]
    assert list(table["top_logprobs"][1]) == ["bytes:\\xe2", "bytes:\\xe3", "bytes:\\xe4"]
    entries = choice(words, CHAT, found)["logprobs"]["content"]
    assert [each["token"] for each in entries] == ["b", "\\xe2", "\\x80", "\\x99", "c"]
    assert bytes(byte for each in entries for byte in each["bytes"]).decode() == "b\u2019c"


def test_tokens_of_one_text_are_kept_apart(words: TextCodec) -> None:
    """The letter b, and the byte that is a b."""
    letter, byte = ids_of(sentencepiece_like(), "b", "<0x62>")
    for token, other in ((letter, byte), (byte, letter)):
        table = choice(words, TEXT, deliveries(words, [letter], [token], top=(other, token, 1)))["logprobs"]
        assert table["tokens"] == ["b"]
        assert table["top_logprobs"] == [{"b": -0.5, "bytes:\\x62": -1.0, "\x00": -3.0}]


def test_a_special_token_has_its_name_and_no_bytes(words: TextCodec) -> None:
    letter, end = ids_of(sentencepiece_like(), "b", "</s>")
    found = deliveries(words, [letter], [letter, end])
    assert choice(words, TEXT, found)["logprobs"]["tokens"] == ["b", "</s>"]
    assert choice(words, TEXT, found)["logprobs"]["text_offset"] == [0, 1]
    (_, entry) = choice(words, CHAT, found)["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("</s>", None)


def test_without_a_tokenizer_tokens_are_named_by_id() -> None:
    found = [_delivery("", [TokenLogprobs(token, -0.5, ())], None) for token in (7, 8)]
    table = choice(None, TEXT, found)["logprobs"]
    assert table["tokens"] == ["token_id:7", "token_id:8"] and table["text_offset"] == [0, 0]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("make", [byte_level_with_words, sentencepiece_like])
def test_offsets_point_into_the_text_that_was_sent(tmp_path: Path, make: Any, seed: int) -> None:
    """Any tokens, broken bytes too, in rounds of any size, with a stop string that is held back and cut off."""
    draw, tokenizer = random.Random(seed), make()
    codec = open_codec(tmp_path, tokenizer, template=None)
    pool = [*codec.encode("ab ab, \u00e9\u4f60\U0001f600"), 200, 225, id_of(tokenizer, "</s>")]
    tokens = [draw.choice(pool) for _ in range(20)]
    top = draw.sample(range(tokenizer.get_vocab_size()), 3)
    ends = sorted({*draw.sample(range(1, 20), 6), 20})
    found = deliveries(codec, pool[:3], tokens, stop=draw.choice([None, "ab a", "b "]), rounds=ends, top=top)
    shape = AnswerShape(CompletionRequest(**TEXT), [Prompt(pool[:3])], codec)
    text, names, offsets = "", [], []
    for delivery in found:
        (part,) = shape.chunks(0, delivery)[0]["choices"]
        text += part["text"]
        table = part["logprobs"]
        assert all(offset <= len(text) for offset in table["text_offset"])
        names += table["tokens"]
        offsets += table["text_offset"]
        for name, alternatives in zip(table["tokens"], table["top_logprobs"], strict=True):
            assert name in alternatives and len(alternatives) in (3, 4)
    assert offsets == sorted(offsets) and len(names) == sum(len(each.delta.tokens) for each in found)
    whole = choice(codec, TEXT, found, pool[:3])
    assert (whole["text"], whole["logprobs"]["tokens"]) == (text, names)
    assert whole["logprobs"]["text_offset"] == offsets
    for name, start in zip(names, offsets, strict=True):
        if not name.startswith("bytes:") and name != "</s>" and start + len(name) <= len(text):
            assert text[start : start + len(name)] == name or "\ufffd" in text[start : start + len(name)]


def test_a_stream_says_the_seed_and_the_prompt_once_and_the_ids_of_every_chunk(words: TextCodec) -> None:
    letter = ids_of(sentencepiece_like(), "b")[0]
    found = deliveries(words, [letter], [letter] * 3)
    for body in (TEXT, CHAT):
        asked = {**body, "return_token_ids": True}
        request = ChatRequest(**asked) if "messages" in asked else CompletionRequest(**asked)
        shape = AnswerShape(request, [Prompt([letter, 4])], words)
        chunks = [chunk for delivery in found for chunk in shape.chunks(0, delivery)]
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [each["token_ids"] for each in choices] == [[letter]] * 3
        assert [each.get("seed") for each in choices] == [7, None, None]
        places: list[Any] = chunks if "messages" in asked else choices
        assert [place.get("prompt_token_ids") for place in places] == [[letter, 4], None, None]
    plain = choice(words, TEXT, found)
    assert plain["seed"] == 7 and "token_ids" not in plain and "prompt_token_ids" not in plain


def test_without_a_tokenizer_the_ids_are_the_answer() -> None:
    found = [
        _delivery("", [TokenLogprobs(9, -0.5, ())], None),
        _delivery("", [TokenLogprobs(8, 0, ())], "stop"),
    ]
    answer = choice(None, {"prompt": [3, 4]}, found, [3, 4])
    assert (answer["text"], answer["token_ids"], answer["prompt_token_ids"]) == ("", [9, 8], [3, 4])
