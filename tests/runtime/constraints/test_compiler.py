"""Constraints compiled for real tokenizers: what they allow, what is refused, and what is kept."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from specruntime.constraints import Compiler, compiler
from specruntime.constraints.grammars import MAX_SCHEMA_BYTES, MAX_TEXT_BYTES
from specruntime.errors import (
    BackendMissing,
    ConstraintInvalid,
    ConstraintTooLarge,
    InvalidArgument,
    WrongState,
)
from specruntime.sampling.constraint import Constraint
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.text.codec import TextCodec
from tests.runtime.constraints.vocabularies import KINDS, PADDING, codec_of, compiler_of, end_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
        "on": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "on"],
    "additionalProperties": False,
}
ARITHMETIC = 'start: term (("+" | "-") term)*\nterm: NUM | "(" start ")"\nNUM: /[0-9]{1,3}/'


@pytest.fixture(scope="module", params=KINDS)
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return codec_of(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return codec_of("byte-level", tmp_path_factory.mktemp("tokenizer"))


def begin(compiled: Compiler, **form: Any) -> Constraint:
    found = compiled.constrain(SamplingParams(structured_outputs=StructuredOutputsParams(**form)))
    assert found is not None
    return found


def walk(constraint: Constraint, seed: int, limit: int = 200) -> list[int]:
    """A random answer: any token of the mask, the shortest way out after a while."""
    random, answer = np.random.default_rng(seed), list[int]()
    while not constraint.ended() and len(answer) < limit:
        token = int(random.choice(constraint.mask().ids))
        constraint.commit([token])
        answer.append(token)
    return answer


def text_of(codec: TextCodec, answer: Sequence[int]) -> str:
    """The text that the answer adds to a prompt, as bytes: one decoder's spaces are no part of it."""
    return b"".join(codec.token_bytes(token) or b"" for token in answer).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("seed", range(12))
def test_random_answers_validate(codec: TextCodec, seed: int) -> None:
    compiled = compiler_of(codec)
    answer = walk(begin(compiled, json=PERSON), seed)
    if answer[-1] in compiled._eos:
        assert jsonschema_rs.is_valid(PERSON, json.loads(text_of(codec, answer)))
    else:
        assert text_of(codec, answer).startswith('{"name": "')
    choice = walk(begin(compiled, choice=["yes", "no", "naïve é", 'a"b']), seed)
    assert text_of(codec, choice) in ("yes", "no", "naïve é", 'a"b')
    regex = walk(begin(compiled, regex="(cat|car) [0-9]{2}"), seed)
    assert text_of(codec, regex)[:3] in ("cat", "car") and text_of(codec, regex)[4:].isdigit()


def test_the_end_is_an_end_token_and_comes_alone(codec: TextCodec) -> None:
    compiled = compiler_of(codec)
    constraint = begin(compiled, choice=["yes"])
    forced: list[int] = []
    while not constraint.ended(forced):
        assert constraint.mask(forced).count >= 1
        forced.append(int(constraint.mask(forced).ids[0]))
    assert text_of(codec, forced) == "yes" and forced[-1] == end_of(codec)
    assert constraint.mask(forced).count == 0
    either = begin(compiled, regex="(ab)+")
    ids = codec.encode_plain("ab")
    start = [token for token in ids if codec.token_bytes(token)]
    if either.mask(start).count > 1:
        assert set(compiled._eos) <= set(either.mask(start).ids.tolist()), "an end, or more text"


def test_padding_and_special_tokens_never_follow(codec: TextCodec) -> None:
    compiled = compiler_of(codec)
    constraint = begin(compiled, regex="(.|\n){0,50}")
    allowed = constraint.mask().allowed
    assert len(allowed) == codec.size + PADDING and not allowed[codec.size :].any()
    silent = [token for token in range(codec.size) if codec.is_silent(token) and token not in compiled._eos]
    assert silent and not allowed[silent].any()


def test_a_mask_is_a_function_of_the_path(codec: TextCodec) -> None:
    """Branching, going back and committing leave no trace."""
    compiled = compiler_of(codec)
    constraint, random = begin(compiled, json=PERSON), np.random.default_rng(4)
    answer = walk(begin(compiled, json=PERSON), 4, limit=40)
    for place, token in enumerate(answer):
        for _ in range(3):
            path: list[int] = []
            while len(path) < 4 and constraint.mask(path).count and not constraint.ended(path):
                path.append(int(random.choice(constraint.mask(path).ids)))
        fresh = begin(compiled, json=PERSON)
        fresh.commit(answer[:place])
        assert np.array_equal(fresh.mask().allowed, constraint.mask().allowed)
        constraint.commit([token])


def test_what_is_forced_is_how_the_tokenizer_writes_it(byte_level: TextCodec) -> None:
    constraint = begin(compiler_of(byte_level), json=PERSON)
    forced: list[int] = []
    while (only := constraint.mask(forced).only) is not None:
        forced.append(only)
    assert text_of(byte_level, forced).startswith('{"name":')
    assert forced == byte_level.encode_plain('{"name": "')[: len(forced)]


def test_white_space_is_that_of_json_dumps_unless_asked_for(byte_level: TextCodec) -> None:
    compiled = compiler_of(byte_level)
    written = {
        name: byte_level.encode_plain(text)
        for name, text in {
            "dumped": json.dumps({"a": 1, "b": 2}),
            "compact": '{"a":1,"b":2}',
            "spread": '{\n  "a": 1,\n  "b": 2\n}',
        }.items()
    }
    schema = {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }  # fmt: skip

    def allowed(**options: Any) -> set[str]:
        constraint = begin(compiled, json=schema, disable_additional_properties=True, **options)
        return {name for name, ids in written.items() if can_follow(constraint, ids)}

    assert allowed() == {"dumped"}
    assert allowed(disable_any_whitespace=False) >= {"compact"}
    assert "spread" not in allowed(whitespace_pattern=" ?")


def can_follow(constraint: Constraint, ids: Sequence[int]) -> bool:
    """Whether the tokens can follow by the grammar, tokenized as they are or otherwise."""
    matcher = constraint._matcher
    moved = [matcher.advance(token) for token in ids]
    whole = all(moved) and matcher.complete()
    matcher.back(sum(moved))
    return whole


REFUSED: dict[str, dict[str, Any]] = {
    "no JSON": {"json": "{nope"},
    "a list": {"json": "[1]"},
    "an unknown type": {"json": {"type": "nonsense"}},
    "an unknown keyword": {"json": {"type": "array", "uniqueItems": True}},
    "no answer": {"json": False},
    "a contradiction": {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
    "itself": {"json": {"$ref": "#"}},
    "another document": {"json": {"$ref": "http://example.com/s.json"}},
    "an open group": {"regex": "(a"},
    "a look-ahead": {"regex": "(?=a)b"},
    "an unknown rule": {"grammar": "start: nope"},
    "a grammar without words": {"grammar": "start: a\na: b\nb: a"},
    "no grammar": {"grammar": "???"},
    "a white space that cannot be parsed": {"json": {"type": "object"}, "whitespace_pattern": "("},
}
HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "a long schema": lambda: {"json": {"enum": ["x" * MAX_SCHEMA_BYTES]}},
    "a long regex": lambda: {"regex": "a" * (MAX_TEXT_BYTES + 1)},
    "many choices": lambda: {"choice": [f"choice {number}" for number in range(20_000)]},
    "a deep schema": lambda: {"json": '{"items":' * 5_000 + "{}" + "}" * 5_000},
    "a very deep schema": lambda: {"json": '{"items":' * 50_000 + "{}" + "}" * 50_000},
    "a deep regex": lambda: {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "a deep grammar": lambda: {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "a product of cases": lambda: {
        "json": {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}_{j}": {"type": "string"}}} for j in range(6)]}
                for i in range(8)
            ]
        }
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(byte_level: TextCodec, name: str) -> None:
    with pytest.raises(ConstraintInvalid) as caught:
        begin(compiler_of(byte_level), **REFUSED[name])
    message = str(caught.value)
    assert message.startswith("structured_outputs.") and "\n" not in message and len(message) < 600


@pytest.mark.parametrize("name", HOSTILE)
def test_what_exceeds_a_limit_is_refused(byte_level: TextCodec, name: str) -> None:
    with pytest.raises(ConstraintTooLarge, match=r"structured_outputs\."):
        begin(compiler_of(byte_level), **HOSTILE[name]())


def test_a_form_that_is_hard_to_go_on_with_ends_its_answer_alone(byte_level: TextCodec) -> None:
    compiled = compiler_of(byte_level)
    constraint = begin(compiled, regex="(.*a.{2000}){50}")
    answer = walk(constraint, 1, limit=30)
    assert len(answer) == 30 or constraint.ended()


def test_a_compilation_that_takes_too_long_is_given_up(
    byte_level: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, going_on = compiler_of(byte_level), threading.Event()
    monkeypatch.setattr(compiler, "COMPILE_SECONDS", 0.05)
    monkeypatch.setattr(compiled, "_compile", lambda form: going_on.wait(10))
    with pytest.raises(ConstraintTooLarge, match="not compiled within"):
        begin(compiled, regex="a")
    going_on.set()


def test_each_form_is_compiled_once_and_so_many_are_kept(
    byte_level: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, made = compiler_of(byte_level), list[str]()
    real = compiled._compile

    def noted(form: StructuredOutputsParams) -> Any:
        made.append(form.text)
        return real(form)

    monkeypatch.setattr(compiled, "_compile", noted)
    monkeypatch.setattr(compiler, "_KEPT", 3)
    for text in ("a", "b", "a", "c", "a", "d", "a", "b"):
        begin(compiled, regex=text)
    assert made == ["a", "b", "c", "d", "b"] and len(compiled._compiled) == 3
    with pytest.raises(ConstraintInvalid):
        begin(compiled, regex="(")
    assert len(compiled._compiled) == 3, "what was refused is not kept"


def test_a_closed_bundle_compiles_nothing_more(byte_level: TextCodec) -> None:
    compiled = compiler_of(byte_level)
    begin(compiled, regex="a")
    compiled.close()
    begin(compiled, regex="a")
    with pytest.raises(WrongState, match="closed"):
        begin(compiled, regex="b")


def test_forms_that_differ_have_digests_that_differ() -> None:
    forms = [
        StructuredOutputsParams(json={"type": "object"}), StructuredOutputsParams(json_object=True),
        StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=False),
        StructuredOutputsParams(json={"type": "object"}, whitespace_pattern=" "),
        StructuredOutputsParams(regex="a"), StructuredOutputsParams(choice=("a",)),
        StructuredOutputsParams(grammar="a"),
        StructuredOutputsParams(json={"properties": {"a": {}, "b": {}}}),
        StructuredOutputsParams(json={"properties": {"b": {}, "a": {}}}),
    ]  # fmt: skip
    assert len({form.digest for form in forms}) == len(forms)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regex": "a", "choice": ["a"]},
        {"json_object": False},
        {"choice": []},
        {"choice": ["a", ""]},
        {"choice": "abc"},
        {"regex": ""},
        {"regex": 3},
        {"json": 3},
        {"json": {"a": object()}},
        {"json": {"a": "\ud800"}, "disable_any_whitespace": 1},
        {"regex": "\ud800"},
        {"structural_tag": "x"},
        {"rexeg": "a"},
    ],
)
def test_options_that_contradict_themselves_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="structured_outputs"):
        StructuredOutputsParams(**options)


def test_without_the_library_the_install_line_is_given(
    byte_level: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(BackendMissing, match=r"pip install 'specruntime\[structured\]'"):
        begin(compiler_of(byte_level), regex="a")
    assert compiler_of(byte_level).constrain(SamplingParams()) is None


def test_the_library_is_not_imported_with_the_package() -> None:
    script = "import sys, specruntime; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_answer_without_end_tokens_is_refused(byte_level: TextCodec) -> None:
    form = StructuredOutputsParams(regex="a")
    with pytest.raises(InvalidArgument, match="end token"):
        compiler_of(byte_level).constrain(SamplingParams(ignore_eos=True, structured_outputs=form))
    own = SamplingParams(ignore_eos=True, structured_outputs=form, stop_token_ids=(5,))
    constraint = compiler_of(byte_level).constrain(own)
    assert constraint is not None
    constraint.commit(byte_level.encode_plain("a"))
    assert constraint.mask().ids.tolist() == [5]


def test_a_tokenizer_that_does_not_write_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConstraintInvalid, match="byte-level"):
        begin(compiler_of(codec_of("words", tmp_path)), regex="a")


def test_a_bundle_without_tokenizer_refuses_constraints() -> None:
    with pytest.raises(InvalidArgument, match="no tokenizer"):
        begin(Compiler(lambda: None, 97, (3,)), regex="a")


def test_answers_in_many_threads_do_not_disturb_each_other(byte_level: TextCodec) -> None:
    compiled = compiler_of(byte_level)
    expected = [walk(begin(compiled, json=PERSON), seed) for seed in range(8)]
    found: dict[int, list[int]] = {}

    def answer(seed: int) -> None:
        found[seed] = walk(begin(compiled, json=PERSON), seed)

    threads = [threading.Thread(target=answer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(8)] == expected


def test_an_unknown_keyword_is_named(byte_level: TextCodec) -> None:
    with pytest.raises(ConstraintInvalid, match="uniqueItems"):
        begin(compiler_of(byte_level), json={"properties": {"a": {"type": "array", "uniqueItems": True}}})
