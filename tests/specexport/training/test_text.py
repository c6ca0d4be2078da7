"""Prompts, answers and features: what a draft is trained on, before any training."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from specexport.bench.prompts import load_prompts
from specexport.checkpoints.loading import Checkpoint
from specexport.errors import TrainingRefused
from specexport.training import questions
from specexport.training.answers import (
    AnswerProgress,
    Dialogue,
    answer_prompts,
    append_dialogues,
    read_dialogues,
)
from specexport.training.decoding import Request, SlotDecoder
from specexport.training.features import FeatureStore, Setup, Span, add_features
from specexport.training.kinds import most_frequent, tapped_layers
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import (
    OVERLAP_WORDS,
    Excluded,
    append_prompts,
    read_prompts,
    read_training_text,
)
from tests.conftest import RECIPES

SETUP = Setup("tiny", 32, (2, 3))


def dialogues(count: int) -> list[Dialogue]:
    made = torch.Generator().manual_seed(1)
    return [
        Dialogue(
            tuple(torch.randint(0, 255, (5 + n % 7,), generator=made).tolist()),
            tuple(torch.randint(0, 255, (3 + n % 11,), generator=made).tolist()),
            greedy=n % 2 == 0,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("name", ["train.jsonl", "train-more.jsonl"])
def test_no_training_prompt_is_a_benchmark_prompt_or_near_one(name: str) -> None:
    benchmark = Excluded([json.loads(line)["prompt"] for line in _lines("bench.jsonl")])
    prompts = read_prompts(RECIPES / "prompts" / name)
    assert len(prompts) == len(set(prompts)) > 1000
    assert [prompt for prompt in prompts if prompt in benchmark] == []


def test_the_overlap_check_finds_copies_in_other_letters_and_long_runs_within() -> None:
    words = [f"word{n}" for n in range(40)]
    excluded = Excluded([" ".join(words), "Why is the sky blue?"])
    assert "why is -- the SKY blue" in excluded
    assert "And now: " + " ".join(words[20 : 20 + OVERLAP_WORDS]) in excluded
    assert "And now: " + " ".join(words[20 : 19 + OVERLAP_WORDS]) not in excluded
    assert "Why is the sky red?" not in excluded


def test_decoding_side_by_side_gives_the_tokens_of_generate(target: Checkpoint) -> None:
    prompts = [dialogue.prompt_ids for dialogue in dialogues(9)]
    decoder = SlotDecoder(target.model, slots=3, capacity=64, end_ids=target.eos_token_ids)
    found = {request.prompt_ids: ids for request, ids in decoder.decode(Request(p, 0.0, 20) for p in prompts)}
    assert found.keys() == set(prompts)
    for prompt in prompts:
        expected = target.model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)  # type: ignore[operator]
        assert found[prompt] == tuple(expected[0, len(prompt) :].tolist())


def test_drawn_answers_follow_the_seed_and_never_hold_a_banned_id(target: Checkpoint) -> None:
    def draw(seed: int) -> dict[tuple[int, ...], tuple[int, ...]]:
        banned = tuple(range(100))
        decoder = SlotDecoder(
            target.model, slots=4, capacity=64, end_ids=target.eos_token_ids, banned=banned, seed=seed
        )
        requests = (Request(dialogue.prompt_ids, 1.0, 20) for dialogue in dialogues(6))
        return {request.prompt_ids: ids for request, ids in decoder.decode(requests)}

    first = draw(0)
    assert draw(0) == first
    assert draw(1) != first
    assert all(index >= 100 for ids in first.values() for index in ids)


def test_a_prompt_without_room_for_its_answer_is_refused(target: Checkpoint) -> None:
    decoder = SlotDecoder(target.model, slots=1, capacity=16, end_ids=())
    with pytest.raises(TrainingRefused, match="found 10 tokens, expected at most 8, so that 8 can follow"):
        list(decoder.decode(iter([Request(tuple(range(10)), 0.0, 8)])))


def test_answers_continue_after_an_interruption(target: Checkpoint, tmp_path: Path) -> None:
    prompts = [dialogue.prompt_ids for dialogue in dialogues(8)]

    def answer(path: Path) -> set[Dialogue]:
        return set(
            answer_prompts(target.model, prompts, path, end_ids=target.eos_token_ids, answer_tokens=12)
        )

    whole = answer(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:3]) + lines[3][:20])
    again = answer(cut)
    assert cut.read_text().splitlines(keepends=True)[:3] == lines[:3]
    assert {dialogue.prompt_ids for dialogue in again} == set(prompts)
    greedy = {dialogue for dialogue in whole if dialogue.greedy}
    assert greedy & again >= {dialogue for dialogue in greedy if dialogue.prompt_ids in _prompts(lines[:3])}


def test_progress_counts_tokens_and_expects_what_the_ended_answers_suggest(
    target: Checkpoint, tmp_path: Path
) -> None:
    prompts = [dialogue.prompt_ids for dialogue in dialogues(8)]
    heard: list[AnswerProgress] = []
    found = answer_prompts(
        target.model,
        prompts,
        tmp_path / "it.jsonl",
        end_ids=(),
        answer_tokens=12,
        slots=4,
        progress=heard.append,
    )
    assert heard[0] == AnswerProgress(0, 8)
    assert heard[1] == AnswerProgress(0, 8, tokens=4, expected=96)  # one step of four slots, before any ended
    assert heard[-1] == AnswerProgress(8, 8, tokens=96, expected=96)
    assert sum(len(dialogue.answer_ids) for dialogue in found) == 96
    assert [each.tokens for each in heard] == sorted(each.tokens for each in heard)


@pytest.mark.parametrize("before", [6, 12, 20])
def test_answers_are_as_long_as_is_asked_whatever_was_asked_before(
    target: Checkpoint, tmp_path: Path, before: int
) -> None:
    prompts = [dialogue.prompt_ids for dialogue in dialogues(8)]

    def answer(path: Path, tokens: int, ends: Sequence[int]) -> dict[tuple[int, ...], Dialogue]:
        found = answer_prompts(target.model, prompts, path, end_ids=ends, answer_tokens=tokens)
        assert len(found) == len(prompts)
        return {dialogue.prompt_ids: dialogue for dialogue in found}

    ends = range(128, 272, 4)  # a random model hardly ever ends by itself
    expected = answer(tmp_path / "alone.jsonl", 12, ends)
    assert len({len(dialogue.answer_ids) for dialogue in expected.values()}) > 1
    path = tmp_path / "again.jsonl"
    answer(path, before, ends)
    size = path.stat().st_size
    found = answer(path, 12, ends)
    assert (path.stat().st_size > size) is (before < 12), (
        "only what a smaller limit had cut is answered again"
    )
    for prompt, dialogue in found.items():
        whole = len(dialogue.answer_ids) == 12 or dialogue.answer_ids[-1] in ends
        assert whole and len(dialogue.answer_ids) <= 12
        if dialogue.greedy and expected[prompt].greedy:
            assert dialogue == expected[prompt]


def test_a_line_that_is_no_dialogue_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    append_dialogues(path, dialogues(1))
    path.write_text(path.read_text() + '{"prompt_ids": []}\n')
    with pytest.raises(TrainingRefused, match=r"answers\.jsonl:2: found .*prompt_ids.*remove the line"):
        list(read_dialogues(path))


def test_features_are_what_the_target_computes_alone(target: Checkpoint, tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, SETUP)
    made = dialogues(20)
    spans = add_features(store, target.model, made, tokens_per_batch=64)
    assert len(spans) == len(store.spans) == 20
    for span, dialogue in zip(spans, made, strict=True):
        rows = slice(span.start, span.start + span.length)
        assert store.rows("ids")[rows].tolist() == list(dialogue.ids)
        with torch.no_grad():
            ids = torch.tensor([dialogue.ids])
            states = target.model.model(ids, output_hidden_states=True).hidden_states
        torch.testing.assert_close(store.rows("final")[rows], states[-1][0].bfloat16(), rtol=2e-2, atol=2e-2)
        taps = torch.cat([states[2][0], states[3][0]], dim=-1).bfloat16()
        torch.testing.assert_close(store.rows("taps")[rows], taps, rtol=2e-2, atol=2e-2)


def test_what_leaves_the_last_layer_is_not_normed(target: Checkpoint, tmp_path: Path) -> None:
    layers = target.model.config.num_hidden_layers
    store = FeatureStore(tmp_path, Setup("tiny", 32, (2, layers)))
    (dialogue,) = dialogues(1)
    (span,) = add_features(store, target.model, [dialogue])
    left: list[torch.Tensor] = []
    hook = target.model.model.layers[-1].register_forward_hook(
        lambda module, args, output: left.append(output)
    )
    with torch.no_grad():
        target.model.model(torch.tensor([dialogue.ids]))
    hook.remove()
    found = store.rows("taps")[span.start : span.start + span.length, 32:]
    torch.testing.assert_close(found, left[0][0].bfloat16(), rtol=2e-2, atol=2e-2)


def test_features_continue_after_a_write_that_was_cut_short(target: Checkpoint, tmp_path: Path) -> None:
    made = dialogues(20)
    add_features(FeatureStore(tmp_path, SETUP), target.model, made[:8], tokens_per_batch=64)
    with (tmp_path / "final.bin").open("ab") as stream:
        stream.write(b"\0" * 333)
    with (tmp_path / "spans.jsonl").open("a") as stream:
        stream.write('{"index": 9, "sta')
    store = FeatureStore(tmp_path, SETUP)
    add_features(store, target.model, made, tokens_per_batch=64)
    assert sorted(_texts(store, store.spans)) == sorted(list(dialogue.ids) for dialogue in made)
    assert len(store.rows("final")) == sum(len(dialogue.ids) for dialogue in made)


def test_rows_are_those_of_the_dialogues_asked_for_whatever_the_store_holds(
    target: Checkpoint, tmp_path: Path
) -> None:
    made = dialogues(20)
    store = FeatureStore(tmp_path, SETUP)
    add_features(store, target.model, made[:12], tokens_per_batch=64)
    spans = add_features(FeatureStore(tmp_path, SETUP), target.model, made[8:], tokens_per_batch=64)
    held = FeatureStore(tmp_path, SETUP)
    assert len(held.spans) == 20
    assert _texts(held, spans) == [list(dialogue.ids) for dialogue in made[8:]]


def test_features_of_another_target_are_refused(tmp_path: Path) -> None:
    FeatureStore(tmp_path, SETUP)
    with pytest.raises(TrainingRefused, match=r"holds features of .*tiny.*expected .*other.*--work"):
        FeatureStore(tmp_path, Setup("other", 32, (2, 3)))


def test_a_target_of_few_layers_has_no_three_to_tap() -> None:
    tapped = tapped_layers("eagle3", 30)
    assert tapped is not None
    assert tapped.entering == (2, 15, 27)
    with pytest.raises(TrainingRefused, match="found a target of 4 layers, expected at least 6"):
        tapped_layers("eagle3", 4)


def test_the_vocabulary_is_what_answers_hold_most_and_the_end() -> None:
    prompt = next(n for n in range(100) if not Dialogue((n,), (1,), True).held_out)
    made = [Dialogue((prompt,), (200, 200, 201), True), Dialogue((prompt,), (201, 202), True)]
    ids = most_frequent(made, 4, always=(256,), vocab_size=259, padded_vocab_size=272)
    assert ids.tolist() == [200, 201, 202, 256]
    everything = most_frequent(made, 999, always=(256,), vocab_size=259, padded_vocab_size=272)
    assert everything.tolist() == list(range(259))


def test_questions_are_new_and_read_alike(target: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_TRIES", 100)  # random bytes are seldom text
    codec = PromptCodec.of(target)
    written = list(
        questions.write_questions(
            target.model,
            codec,
            6,
            end_ids=range(128, 272),  # a random model hardly ever ends by itself
            openings=("Say", "Is "),
            excluded=Excluded([]),
            known=["Say it"],
        )
    )
    assert len(set(written)) == 6
    assert "Say it" not in written
    assert all(question.startswith(("Say", "Is ")) for question in written)


def test_prompt_files_are_read_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    append_prompts(path, ["one", "two\nlines", "one"])
    assert read_prompts(path) == ["one", "two\nlines"]
    path.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(TrainingRefused, match=r"prompts\.jsonl:2: found .*expected .*prompt"):
        read_prompts(path)
    with pytest.raises(TrainingRefused, match=r"cannot be read.*write-prompts"):
        read_prompts(tmp_path / "none.jsonl")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_end_where_those_of_json_files_do(tmp_path: Path, end: str, mark: str) -> None:
    """JSON Lines, https://jsonlines.org: the terminator is a line feed; JSON's texts may hold all other breaks."""
    texts = ["a\u2028b", "c\u0085d\u2029e", "f\x0bg\x1ch"]
    lines = [json.dumps({"prompt": text}, ensure_ascii="\x0b" in text) for text in texts]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes((mark + "".join(line + end for line in lines)).encode())
    assert read_prompts(path) == texts
    assert read_training_text(path) == (texts, [])
    for number, line in enumerate(lines):
        path.write_text(f'{{"id": "x", {line[1:]}\n' + f'{{"id": "y", {lines[number][1:]}', encoding="utf-8")
        assert [prompt.prompt for prompt in load_prompts(path)] == [texts[number]] * 2


def test_a_prompt_is_added_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "by hand"}')
    append_prompts(path, ["one"])
    append_prompts(path, ["two"])
    assert read_prompts(path) == ["by hand", "one", "two"]


def _texts(store: FeatureStore, spans: Sequence[Span]) -> list[list[int]]:
    return [store.rows("ids")[span.start : span.start + span.length].tolist() for span in spans]


def _lines(name: str) -> list[str]:
    return (RECIPES / "prompts" / name).read_text(encoding="utf-8").splitlines()


def _prompts(lines: list[str]) -> set[tuple[int, ...]]:
    return {tuple(json.loads(line)["prompt_ids"]) for line in lines}
