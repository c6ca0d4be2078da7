"""Every family of transformers' causal language models is in a table of docs/architectures.md: built, or refused."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache as cached
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specexport.checkpoints.refusals import require_attention, require_language_model
from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import check_config, check_supported, freeze_rope
from tests.specexport.export.architecture_tables import require_section
from tests.specexport.export.architectures import EXPORTED
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE
from tests.specexport.export.eager_windows import operators
from tests.specexport.export.exported import random_model
from tests.specexport.export.published import (
    CHECKPOINT,
    GROUPS,
    Published,
    build_published,
    load_published,
    published,
    write_checkpoint,
)

BUILT_HEAD = "| family | keys of the config of |\n|---|---|"
REFUSED_HEAD = "| reason | families |\n|---|---|"
TRACED_ONLY = "decides by the values of tensors while it runs, which no graph can"


def built() -> dict[str, list[str]]:
    """Checkpoints by family; without checkpoints, the class's own config was built."""
    found: dict[str, list[str]] = {}
    for group in GROUPS:
        for row in published(group):
            found.setdefault(row.model_type, []).extend([row.checkpoint] if row.checkpoint else [])
    return dict(sorted(found.items()))


def refusal(row: Published) -> str:
    """What a config of small sizes is answered with."""
    with quiet(), pytest.raises(CheckpointUnsupported) as failure:
        config = AutoConfig.for_model(**row.config)
        require_language_model("", config)
        if check_config(config).untried is not None:  # its cache depends on values: with weights, then
            check_supported(AutoModelForCausalLM.from_config(config))
    return str(failure.value)


def refusal_of_class(family: str) -> str:
    """What the class's own config is answered with, whose sizes no test could hold."""
    with quiet(), pytest.raises(CheckpointUnsupported) as failure:
        config = CONFIG_MAPPING[family]()
        require_language_model("", config)
        require_attention(config, AutoModelForCausalLM._model_mapping[type(config)])
    return str(failure.value)


@cached
def refused() -> dict[str, str]:
    """The message for each family that is not built, its own name left out."""
    stated = {row.model_type: row for row in published("refused")}
    found = {row.model_type: TRACED_ONLY for row in published("traced")}
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if family in stated:
            message = refusal(stated[family])
        elif family in {*built(), *found} or CONFIG_MAPPING[family].model_type in built():
            continue
        else:
            message = refusal_of_class(family)
        found[family] = message.removeprefix(": ").removeprefix(family).removeprefix(":").strip()
    return found


@pytest.mark.slow
def test_the_page_names_every_family_that_builds_and_every_one_that_does_not() -> None:
    rows = [f"| `{family}` | {', '.join(names) or 'its class'} |" for family, names in built().items()]
    require_section("built", "\n".join([BUILT_HEAD, *rows]))
    by_reason = defaultdict(list)
    for family, message in refused().items():
        by_reason[message].append(f"`{family}`")
    lines = [
        f"| {message} | {', '.join(sorted(families))} |" for message, families in sorted(by_reason.items())
    ]
    require_section("families refused", "\n".join([REFUSED_HEAD, *lines]))


@pytest.mark.slow
def test_a_refusal_names_the_family_and_what_is_expected() -> None:
    for family, message in refused().items():
        assert message == TRACED_ONLY or "expected" in message or "check" in message, family
        assert "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("row", published("traced"), ids=str)
def test_what_chooses_by_values_is_refused_while_it_is_traced(
    cache: Path, tmp_path: Path, row: Published
) -> None:
    with quiet(), pytest.raises(CheckpointUnsupported, match=r"cannot be exported: .*data-dependent"):
        write_checkpoint(row, tmp_path / CHECKPOINT)
        build_published(tmp_path)


def operators_of(row: Published, place: Path) -> set[str]:
    """How the model of a line calls operators, loaded as a build loads it."""
    place.mkdir()
    write_checkpoint(row, place / CHECKPOINT)
    model, layout, capacity, vocab_size = load_published(place)
    return operators(model, layout, capacity=capacity, vocab_size=vocab_size)


def operators_of_exported(model_type: str, sizes: Mapping[str, Any]) -> set[str]:
    """How a model calls operators whose graph is compared with PyTorch at every shape."""
    model = random_model(model_type, sizes)
    layout = check_supported(model)
    freeze_rope(model, CAPACITY)
    return operators(model, layout, capacity=CAPACITY, vocab_size=VOCAB_SIZE)


@pytest.mark.slow
def test_what_is_not_traced_calls_no_operator_otherwise_than_what_is(cache: Path, tmp_path: Path) -> None:
    """A trace translates calls of operators: those of every family, and every two in a row, are in a graph."""
    rows = [row for group in GROUPS for row in published(group)]
    with quiet():
        known = [operators_of(row, tmp_path / str(n)) for n, row in enumerate(rows)]
        traced = [operators_of_exported(each.model_type, each.sizes) for each in EXPORTED]
    traced += [calls for row, calls in zip(rows, known, strict=True) if row.built]
    proven = set().union(*traced)
    unproven = {str(row): calls - proven for row, calls in zip(rows, known, strict=True)}
    assert {name: calls for name, calls in unproven.items() if calls} == {}, 'add "built": true to its line'
