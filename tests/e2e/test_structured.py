"""Structured answers on real graphs: tiny random models of every kind of draft, through ONNX Runtime and llguidance.

With drafts and without the tokens are equal, in sessions and in batches of constrained and free rows; what is not cut
by a limit validates, and what is cut is the beginning of a valid answer.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.generation import Completion, complete
from specruntime.llm import LLM
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from tests.e2e.conftest import DRAFT_KINDS, Built, Opened

PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 250, 23)]
LIMIT = 120
TEXT = {"type": "string", "maxLength": 7}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "on": {"type": "boolean"},
        },
        "required": ["name", "age", "on"],
        "additionalProperties": False,
    },
    "choices": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["person", "pet", "place"]}, "is": {"const": "fixed text"}, "of": {"type": "null"},
        },
        "required": ["kind", "is", "of"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    "nested": {
        "$defs": {"node": {
            "type": "object", "required": ["v"], "additionalProperties": False,
            "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
        }},
        "$ref": "#/$defs/node",
    },
    "either": {"anyOf": [{"type": "string", "pattern": "^[a-f]{2,5}$"}, {"type": "integer", "multipleOf": 5}]},
    "optional": {
        "type": "object",
        "properties": {
            "first": {"type": "integer"}, "second": TEXT, "third": {"type": "array", "items": TEXT, "maxItems": 2},
        },
        "additionalProperties": False,
    },
}  # fmt: skip
REGEXES = {
    "date": r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]",
    "words": r"(alpha|beta|gamma)( (alpha|beta|gamma)){0,4}\.",
    "unicode": r"[а-я]{2,6}(é|日本)",
}
GRAMMARS = {
    "arithmetic": 'start: term (("+" | "-") term)*\nterm: NUM | "(" start ")"\nNUM: /[0-9]{1,2}/',
    "gbnf": 'root ::= "yes " list\nlist ::= item | item ", " list\nitem ::= "one" | "two" | "three"',
}
FORMS: dict[str, StructuredOutputsParams] = {
    **{name: StructuredOutputsParams(json=schema) for name, schema in SCHEMAS.items()},
    **{name: StructuredOutputsParams(regex=regex) for name, regex in REGEXES.items()},
    **{name: StructuredOutputsParams(grammar=grammar) for name, grammar in GRAMMARS.items()},
    "choice": StructuredOutputsParams(choice=("yes", "no", "certainly not")),
    "object": StructuredOutputsParams(json_object=True),
    "spaced": StructuredOutputsParams(json=SCHEMAS["choices"], whitespace_pattern="[ \n]{0,2}"),
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=LIMIT),
    "sampled": SamplingParams(temperature=1.1, top_p=0.95, seed=7, max_tokens=LIMIT),
    "penalised": SamplingParams(
        temperature=0.8, top_k=40, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={5: 1.0}, seed=2,
        max_tokens=LIMIT,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def modelled(tiny_bundle: Path) -> Iterator[LoadedBundle]:
    with open_bundle(tiny_bundle) as bundle:
        yield bundle


@pytest.fixture(params=["model", *DRAFT_KINDS])
def bundle(request: pytest.FixtureRequest, opened: Opened, modelled: LoadedBundle) -> LoadedBundle:
    return modelled if request.param == "model" else opened(request.param)


def answer(bundle: LoadedBundle, params: SamplingParams, *, speculate: bool) -> Completion:
    session = bundle.new_session(speculate)
    try:
        return complete(session, PROMPT, params, bundle.tokenizer)
    finally:
        session.close()


def require_form(name: str, form: StructuredOutputsParams, found: Completion) -> None:
    assert found.finish_reason in ("stop", "length")
    if found.finish_reason == "length":
        return
    if form.kind in ("json", "json_object"):
        schema: Any = form.json if form.json is not None else {"type": "object"}
        assert jsonschema_rs.is_valid(schema, json.loads(found.text)), found.text
    elif form.regex is not None:
        assert re.fullmatch(form.regex, found.text)
    elif form.choice is not None:
        assert found.text in form.choice
    elif name == "gbnf":
        assert re.fullmatch("yes (one|two|three)(, (one|two|three))*", found.text)
    else:
        assert isinstance(eval(re.sub(r"\b0+(?=[0-9])", "", found.text)), int)


@pytest.mark.parametrize("name", FORMS)
def test_no_draft_changes_a_token_of_a_structured_answer(bundle: LoadedBundle, name: str) -> None:
    for sampling in SAMPLINGS.values():
        params = replace(sampling, structured_outputs=FORMS[name])
        plain, drafted = (answer(bundle, params, speculate=speculate) for speculate in (False, True))
        assert drafted.token_ids == plain.token_ids
        assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
        require_form(name, FORMS[name], drafted)


@pytest.mark.parametrize("name", ["person", "words", "choice"])
def test_rejection_keeps_the_form(bundle: LoadedBundle, name: str) -> None:
    for seed in range(5):
        params = SamplingParams(
            temperature=1.0, seed=seed, accept="rejection", max_tokens=LIMIT, structured_outputs=FORMS[name]
        )
        found = [answer(bundle, params, speculate=True) for _ in range(2)]
        assert found[0].token_ids == found[1].token_ids
        require_form(name, FORMS[name], found[0])


def test_what_must_follow_takes_no_rounds(bundle: LoadedBundle) -> None:
    params = SamplingParams(structured_outputs=FORMS["choices"], max_tokens=LIMIT)
    for speculate in (False, True):
        found = answer(bundle, params, speculate=speculate)
        stats = found.stats
        assert stats.tokens - stats.discarded == len(found.token_ids)
        assert stats.rounds + stats.prefills < 0.4 * len(found.token_ids)
        if not speculate:
            assert stats.forced > 0.5 * len(found.token_ids) and not stats.accepted


def test_constrained_and_free_rows_share_their_launches(built: Built) -> None:
    """Four rows of a batch, each as alone: two forms, a processor and a free answer."""
    rows = [
        SamplingParams(structured_outputs=FORMS["person"], max_tokens=60),
        SamplingParams(temperature=0.9, seed=3, max_tokens=60, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=4, structured_outputs=FORMS["words"], max_tokens=60),
        SamplingParams(max_tokens=60, logits_processors=(_favour,), ignore_eos=True),
    ]
    for kind in ("eagle3", "eagle3-tree", "layer-skip"):
        with open_bundle(built(kind)) as bundle:
            alone = [answer(bundle, params, speculate=False).token_ids for params in rows]
        with LLM(built(kind), max_num_seqs=4) as llm:
            together = llm.generate([PROMPT] * 4, rows)
        assert [tuple(output.outputs[0].token_ids) for output in together] == alone


def _favour(
    ids: list[int], row: "np.ndarray[Any, np.dtype[np.float32]]"
) -> "np.ndarray[Any, np.dtype[np.float32]]":
    row[97 + len(ids) % 20] += 4
    return row


def test_a_form_that_ends_at_once_fails_alone(built: Built) -> None:
    """A row that meets a dead end is an error of its own: the others of the step go on."""
    with LLM(built("eagle3"), max_num_seqs=2) as llm:
        yes = llm.bundle.tokenizer.encode("yes") if llm.bundle.tokenizer is not None else []
        dead = SamplingParams(
            structured_outputs=StructuredOutputsParams(choice=("yes",)),
            logit_bias={yes[-1]: -np.inf},
            max_tokens=9,
        )
        with pytest.raises(ValueError, match="banned"):
            llm.generate([PROMPT], dead)
        fine = llm.generate([PROMPT], SamplingParams(structured_outputs=FORMS["choice"], max_tokens=30))
        assert fine[0].outputs[0].text in ("yes", "no", "certainly not")
