"""Where weights are not packed, and when a packed bundle is made again."""

from pathlib import Path

import pytest
import yaml

from specexport.backends import backend_of
from specexport.build import build
from specexport.bundle.writer import build_key
from specexport.errors import RecipeError
from specexport.recipe.schema import load_recipe
from specruntime.errors import BackendIncompatible
from tests.conftest import RECIPES
from tests.specexport.graph.packed_recipes import recipe_of


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_only_the_cpu_packs(tmp_path: Path, provider: str) -> None:
    assert f"found true with provider {provider}, expected provider cpu" in refusal(
        tmp_path, provider=provider
    )


@pytest.mark.parametrize("kind", ["tensorrt", "tensorrt_rtx"])
def test_tensorrt_packs_no_weights(tmp_path: Path, kind: str) -> None:
    assert "backend.prepacked: unknown key, allowed: kind, " in refusal(tmp_path, kind=kind)


def refusal(tmp_path: Path, **backend: object) -> str:
    document = yaml.safe_load((RECIPES / "tiny-random.yaml").read_text())
    document["backend"] = {"prepacked": True, "kind": "onnxruntime", **backend}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "recipe.yaml")
    return str(caught.value)


def test_the_processor_decides_whether_a_packed_bundle_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, packed = load_recipe(RECIPES / "tiny-random.yaml"), recipe_of("random")
    keys = [build_key(plain, {}), build_key(packed, {})]
    monkeypatch.setattr("specexport.backends.onnxruntime.processor_features", lambda: ("avx",))
    assert build_key(plain, {}) == keys[0]
    assert build_key(packed, {}) != keys[1]


def test_a_build_host_without_features_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specexport.backends.onnxruntime.processor_features", lambda: None)
    with pytest.raises(BackendIncompatible, match=r"backend\.prepacked: .* build on Linux"):
        backend_of(recipe_of("random").backend).check_machine(recipe_of("random"))
    with pytest.raises(BackendIncompatible, match=r"backend\.prepacked"):
        build(recipe_of("random"), tmp_path / "never.bundle")
