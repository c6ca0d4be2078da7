"""A recipe says everything, and every mistake in one is answered by one line with key, finding and cure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specexport.draft_kinds import AnyKind, ModelRecipe
from specexport.errors import RecipeError
from specexport.recipe.messages import _number
from specexport.recipe.schema import Recipe, load_recipe
from tests.specexport.recipe.documents import MINIMAL, changed, write

RECIPES = Path(__file__).resolve().parents[3] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_spell_out_every_top_level_key(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    stated = set(yaml.safe_load(path.read_text()))
    optional = {"verify_widths"} if recipe.draft.kind == "none" else set()
    if recipe.weights is None:  # floating-point weights: nothing to say of blocks, nor of what they cost
        optional |= {"weights", "fidelity"}
    if not recipe.backend.runs_kernels:  # their operators alone read another cache
        optional |= {"cache"}
    assert stated == set(Recipe.model_fields) - optional


def test_defaults_follow_draft_and_precision(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, {**MINIMAL, "precision": "fp16"}))
    assert recipe.verify_widths == (4, 11)
    assert recipe.parity.tolerance == 5e-2
    assert (recipe.widest_window, recipe.draft_capacity, recipe.batch) == (128, 256, (1,))


@pytest.mark.parametrize(
    ("draft", "widths"),
    [
        ({"kind": "none"}, ()),
        ({"kind": "ngram", "k": 5}, (6,)),
        ({"kind": "ngram", "k": 6}, (4, 7)),
        ({"kind": "model", "k": 10, "source": {"noise_of_target": {"scale": 0.1}}}, (11,)),
    ],
)
def test_default_verify_widths_end_with_all_drafted_tokens(
    draft: dict[str, Any], widths: tuple[int, ...]
) -> None:
    assert Recipe.model_validate({**MINIMAL, "draft": draft}).verify_widths == widths


def test_local_sources_are_taken_from_the_recipes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, changed("target.source", "./models/../weights.gguf"))
    monkeypatch.chdir("/")
    assert load_recipe(path).target.source == str(tmp_path / "weights.gguf")


def test_a_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / "tiny-random.yaml")
    again = load_recipe(write(tmp_path, recipe.model_dump(mode="json")))
    assert again == recipe
    assert isinstance(again.draft, ModelRecipe)


MISTAKES: list[tuple[Any, ...]] = [
    ("batch", [2, 4], "batch: found [2, 4], expected ascending sizes that begin with 1, such as [1, 2, 4]"),
    ("precison", "fp32", "precison: unknown key, allowed: name, target,", "did you mean 'precision'?"),
    ("draft.max_m", 3, "draft.max_m: unknown key, allowed: kind, k, max_n, min_n", "did you mean 'max_n'?"),
    ("draft.kind", "ngrm", "draft.kind: found 'ngrm', allowed: none, ngram, model", "did you mean 'ngram'?"),
    ("draft", {"k": 4}, "draft.kind: missing, and required; allowed: none, ngram, model"),
    (
        "draft",
        "ngram",
        'draft: found "ngram", expected keys with values: kind, k, max_n, min_n',
        "such as {kind: ngram}",
    ),
    ("draft", {"kind": "model", "k": 4}, "draft.source: missing, and required"),
    ("draft.k", 0, "draft.k: found 0, expected greater than or equal to 1"),
    ("draft.k", 65, "draft.k: found 65, expected less than or equal to 64"),
    ("draft.k", "4", 'draft.k: found "4", expected a valid integer'),
    ("draft.min_n", 5, "draft.min_n: found 5, expected at most max_n = 3"),
    ("precision", "fp23", 'precision: found "fp23", allowed: fp32, fp16, bf16', "did you mean 'fp32'?"),
    ("precision", "bf16", "precision: found bf16, allowed with this backend: fp32, fp16"),
    (
        "prefill_chunk",
        250,
        "capacity: found 256, expected at least 258",
        "250 rows (prefill_chunk or draft.k + 1",
    ),
    (
        "capacity",
        18,
        "capacity: found 18, expected at least 19",
        "prefill_chunk, 4 if left out, or draft.k + 1;",
    ),
    ("prefill_chunk", "1k", 'prefill_chunk: found "1k", expected a valid integer, such as 128'),
    ("capacity", "lots", 'capacity: found "lots", expected a valid integer, such as 2048'),
    ("parity", {"tolerance": "low"}, 'parity.tolerance: found "low", expected a valid number, such as 0.001'),
    ("check.prompts", [["a"]], 'check.prompts[0][0]: found "a", expected a valid integer, such as 1'),
    ("check.chat", "yes", 'check.chat: found "yes", expected a valid boolean: true or false'),
    (
        "backend",
        "cuda",
        'backend: found "cuda", expected keys with values: kind, provider, threads',
        "such as {kind: onnxruntime, provider: cuda}",
    ),
    (
        "backend",
        "tensorrt",
        'backend: found "tensorrt", expected keys with values: kind, ',
        "{kind: tensorrt}",
    ),
    (
        "target",
        "./model",
        'target: found "./model", expected keys with values: source, sha256, trust_remote_code',
        "such as {source: ./my-model}",
    ),
    (
        "check",
        "hello",
        'check: found "hello", expected keys with values: prompts, max_new_tokens, chat',
        'such as {prompts: ["Once upon a time"], max_new_tokens: 32}',
    ),
    ("capacity", 2**31, "capacity: found 2147483648, expected less than or equal to 2147483647"),
    (
        "backend",
        {"kind": "onnxruntime", "threads": 1025},
        "backend.threads: found 1025, expected less than or equal to 1024",
    ),
    ("capacity", None, "capacity: found null, expected a valid integer"),
    (
        "verify_widths",
        [4, 8],
        "verify_widths: found [4, 8], expected ascending widths that end with draft.k + 1 = 11",
    ),
    ("verify_widths", [11, 4], "verify_widths: found [11, 4], expected ascending"),
    ("verify_widths", [], "verify_widths: found [], expected ascending"),
    ("verify_widths", 11, "verify_widths: found 11, expected a list"),
    ("verify_widths", [1, 11], "verify_widths[0]: found 1, expected greater than or equal to 2"),
    (
        "backend",
        {"kind": "onnxruntme"},
        "backend.kind: found 'onnxruntme', allowed: onnxruntime, tensorrt, tensorrt_rtx",
        "did you mean",
    ),
    ("backend", {"kind": "onnxruntime", "provider": "cuda11"}, "backend.provider:", "did you mean 'cuda'?"),
    (
        "weights",
        {"format": "fp7", "calibration": {"text": "a"}},
        "weights.format: found 'fp7', allowed: int8, int4, fp8, int4-awq, nvfp4; did you mean 'fp8'?",
    ),
    ("weights", {"block": 32}, "weights.format: missing, and required; allowed: int8, int4, fp8, int4-awq"),
    ("weights", {"format": "nvfp4"}, "weights.calibration: missing, and required"),
    (
        "weights",
        {"format": "int8", "lm_head": {"format": "fp32", "activations": "blocks"}},
        "weights.lm_head.activations: found blocks with format fp32, expected none",
    ),
    (
        "weights",
        {"format": "int4", "lm_head": {"format": "int4", "activations": "rows"}},
        'weights.lm_head.activations: found "rows", allowed: blocks, fine',
    ),
    (
        "backend",
        {"kind": "onnxruntime", "provider": "cuda", "kernels": True},
        "backend.kernels: found true with provider cuda, expected provider cpu",
    ),
    ("cache", "int4", 'cache: found "int4", allowed: fp32, int8'),
    (
        "weights",
        {"format": "fp8", "block": 64, "calibration": {"text": "a"}},
        "weights.block: found 64 with format fp8, expected none",
    ),
    (
        "weights",
        {"format": "fp8", "calibration": {"text": "a"}},
        "weights: found fp8 with this backend, expected backend.kind tensorrt or tensorrt_rtx",
    ),
    ("parity.tolerance", 0, "parity.tolerance: found 0, expected greater than 0"),
    ("parity.tolerance", float("nan"), "parity.tolerance:", "finite number"),
    ("check.prompts", [], "check.prompts: found [], expected"),
    ("check.prompts", [""], 'check.prompts[0]: found "", expected at least 1 character'),
    ("check.prompts", [[-1]], "check.prompts[0][0]: found -1, expected greater than or equal to 0"),
    ("check.max_new_tokens", 256, "check.max_new_tokens: found 256, expected less than capacity = 256"),
    ("name", "a/b", 'name: found "a/b", expected text that matches'),
    ("target.source", "smollm", "target.source: found 'smollm', expected ./directory", "write ./smollm"),
    ("target.source", "hub://a/b", "target.source: found 'hub://a/b' without a revision"),
    ("target.source", "http://a/b", "target.source: found 'http://a/b', expected ./directory"),
    ("target.source", 3, "target.source: found 3, expected a valid string"),
    (
        "target.source",
        {"randm": {}},
        "target.source.randm: unknown key, allowed: random",
        "did you mean 'random'?",
    ),
    ("target.source", {"random": {"seed": 1}}, "target.source.random.architecture: missing, and required"),
    ("target.sha256", "a" * 64, "target.sha256: found with a source of many files"),
    ("target.sha256", "abc", 'target.sha256: found "abc", expected text that matches'),
]


def test_an_int8_cache_needs_the_operators_that_read_it() -> None:
    document = {**yaml.safe_load((RECIPES / "tiny-random.yaml").read_text()), "cache": "int8"}
    assert Recipe.model_validate(document).cache == "int8"
    document["backend"] = {**document["backend"], "kernels": False}
    with pytest.raises(
        ValueError, match=r"cache: found int8, expected backend\.kind onnxruntime with provider cpu"
    ):
        Recipe.model_validate(document)


@pytest.mark.parametrize(("key", "value", "start", "rest"), [(*m, "")[:4] for m in MISTAKES])
def test_a_mistake_is_one_line_naming_key_finding_and_cure(
    tmp_path: Path, key: str, value: object, start: str, rest: str
) -> None:
    path = write(tmp_path, changed(key, value))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    lines = [line.removeprefix(f"{path}: ") for line in caught.value.lines]
    assert lines[0].startswith(start)
    assert rest in lines[0]
    assert len(lines) == 1, lines
    assert "\n" not in lines[0]


def test_a_recipe_of_three_keys_is_whole(tmp_path: Path) -> None:
    stated = {key: MINIMAL[key] for key in ("name", "target", "draft")}
    recipe = load_recipe(write(tmp_path, stated))
    assert (recipe.capacity, recipe.prefill_chunk, recipe.check.max_new_tokens) == (2048, 128, 64)
    assert recipe.left_to_checkpoint == ("capacity", "check.prompts")
    assert load_recipe(write(tmp_path, recipe.model_dump(mode="json"))).left_to_checkpoint == ()


def test_what_every_recipe_needs_is_told_at_once_with_examples(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, {"precision": "fp32"}))
    for line, (key, example) in zip(
        caught.value.lines,
        [("name", "my-model-ngram"), ("target", "{source: ./my-model}"), ("draft", "{kind: ngram}")],
        strict=True,
    ):
        assert line.startswith(f"{tmp_path / 'recipe.yaml'}: {key}: missing, and required; the keys here are")
        assert line.endswith(f"; such as {key}: {example}")


@pytest.mark.parametrize("capacity", [19, 20, 63, 64, 65, 100, 135, 136, 137, 4096])
def test_what_is_left_out_fits_any_capacity_that_a_draft_leaves_room_in(capacity: int) -> None:
    document = {key: MINIMAL[key] for key in ("name", "target", "draft")}
    recipe = Recipe.model_validate(document | {"capacity": capacity, "check": {"prompts": ["a"]}})
    assert recipe.prefill_chunk == (128 if capacity >= 136 else capacity // 4)
    assert recipe.check.max_new_tokens == (64 if capacity > 64 else capacity // 2)
    assert Recipe.model_validate(document | {"capacity": capacity}).check.max_new_tokens < capacity


def test_all_conflicts_between_keys_are_told_together(tmp_path: Path) -> None:
    document = {**MINIMAL, "capacity": 15, "check": {"prompts": ["a"], "max_new_tokens": 99}, "batch": [2, 4]}
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, document))
    lines = [line.removeprefix(f"{tmp_path / 'recipe.yaml'}: ") for line in caught.value.lines]
    assert [line.partition(",")[0] for line in lines] == [
        "batch: found [2",
        "capacity: found 15",
        "check.max_new_tokens: found 99",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"prefill_chunk": 4096, "capacity": None}, "capacity: defaults to 2048, expected at least 4104"),
        ({"backend": {"kind": "tensorrt"}}, "precision: defaults to fp32, allowed with this backend"),
        ({"verify_widths": [4, 8]}, "end with draft.k + 1 = 11; draft.k is 10 if left out"),
        (
            {"capacity": None, "check": {"prompts": ["a"], "max_new_tokens": 2048}},
            "check.max_new_tokens: found 2048, expected less than capacity = 2048, which was left out; write it",
        ),
    ],
)
def test_a_value_that_nobody_wrote_is_not_called_found(changes: dict[str, Any], line: str) -> None:
    document = {key: value for key, value in (MINIMAL | changes).items() if value is not None}
    with pytest.raises(ValueError) as caught:
        Recipe.model_validate(document)
    (raised,) = caught.value.errors()  # type: ignore[attr-defined]
    assert line in str(raised["ctx"]["error"])


def test_every_number_of_a_recipe_has_an_example() -> None:
    fields = list(numbers_of(Recipe, set()))
    assert len(fields) > 30
    assert [name for name, field in fields if _number(field) is None] == []


def numbers_of(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, FieldInfo]]:
    """Every field below `model` that takes a number, by name."""
    seen.add(model)
    for key, field in model.model_fields.items():
        inner = list(leaves(field.annotation))
        for union in field.metadata:
            inner += union.members() if isinstance(union, AnyKind) else ()
        if {int, float} & set(inner):
            yield f"{model.__name__}.{key}", field
        for other in inner:
            if isinstance(other, type) and issubclass(other, BaseModel) and other not in seen:
                yield from numbers_of(other, seen)


def leaves(annotation: Any) -> Iterator[Any]:
    if not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from leaves(argument)


def test_draft_capacity_lies_between_the_window_and_the_targets() -> None:
    draft = {"kind": "model", "source": {"noise_of_target": {"scale": 0.1}}, "capacity": 512}
    with pytest.raises(ValueError, match=r"draft\.capacity: found 512, expected at most capacity = 256"):
        Recipe.model_validate({**MINIMAL, "draft": draft})
    with pytest.raises(ValueError, match=r"draft\.capacity: found 64, expected at least 136"):
        Recipe.model_validate({**MINIMAL, "draft": {**draft, "capacity": 64}})


ENGINE: dict[str, Any] = {
    **MINIMAL,
    "precision": "fp16",
    "backend": {"kind": "tensorrt_rtx"},
    "weights": {"format": "fp8", "calibration": {"text": "a"}},
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"weights": {"format": "int8"}}, r"weights: found int8 with this backend.* fp8, int4-awq or nvfp4"),
        (
            {"precision": "fp32", "backend": {"kind": "tensorrt_rtx", "decomposable_attention": True}},
            r"precision: found fp32 with weights fp8, expected fp16 or bf16",
        ),
        (
            {"backend": {"kind": "tensorrt_rtx", "compute_capabilities": ["SM75", "SM89"]}},
            r"backend\.compute_capabilities: found SM75 with fp16 and fp8, expected some of SM89, SM120, SM121",
        ),
        ({"backend": {"kind": "tensorrt", "refit": True}}, r"backend\.refit: found true with weights fp8"),
        ({"backend": {"kind": "tensorrt", "strip_weights": True}}, r"backend\.strip_weights: found true"),
        (
            {
                "weights": None,
                "precision": "bf16",
                "backend": {"kind": "tensorrt_rtx", "compute_capabilities": ["SM75"]},
            },
            r"backend\.compute_capabilities: found SM75 with bf16, expected some of SM80, ",
        ),
    ],
    ids=["integers", "fp32", "capability", "refit", "strip", "bf16"],
)
def test_what_an_engine_cannot_store_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Recipe.model_validate({**ENGINE, **changes})


def test_engine_weights_are_the_targets_alone() -> None:
    draft = {"kind": "model", "k": 4, "source": {"noise_of_target": {"scale": 0.1}}}
    recipe = Recipe.model_validate({**ENGINE, "draft": draft})
    assert recipe.engine_weights is not None
    assert recipe.weights_of("target") is None and recipe.weights_of("draft") is None
    assert (recipe.shown_precision, recipe.stored_formats) == ("fp8", ("fp16", "fp8"))


def test_only_a_draft_can_be_the_target_with_noise(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"target\.source\.noise_of_target: unknown key, allowed: random"):
        load_recipe(write(tmp_path, changed("target.source", {"noise_of_target": {"scale": 1}})))


def test_each_of_several_mistakes_gets_its_line(tmp_path: Path) -> None:
    document = {**MINIMAL, "precison": "fp32", "capacity": "much", "draft": {"kind": "ngram", "k": 0}}
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, document))
    assert len(caught.value.lines) == 3
