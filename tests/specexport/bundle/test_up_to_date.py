"""A bundle that is current is recognised without the libraries that would build it."""

import subprocess
import sys
from pathlib import Path

from specexport.bundle.writer import BUILD_RECORD_NAME, build_key, is_current
from specexport.checkpoints.named import checkpoint_digests
from specexport.recipe.schema import load_recipe
from tests.conftest import RECIPES

RECIPE = RECIPES / "tiny-random.yaml"


def test_a_fresh_bundle_is_current_until_its_recipe_changes(tiny_bundle: Path) -> None:
    recipe = load_recipe(RECIPE)
    digests = checkpoint_digests(recipe)
    assert is_current(tiny_bundle, build_key(recipe, digests))
    for change in ({"capacity": 255}, {"prefill_chunk": 16}, {"name": "other"}):
        assert not is_current(tiny_bundle, build_key(recipe.model_copy(update=change), digests))
    assert not is_current(tiny_bundle, build_key(recipe, {**digests, "target": "0" * 64}))


def test_what_is_not_a_bundle_is_not_current(tmp_path: Path) -> None:
    assert not is_current(tmp_path, "key")
    (tmp_path / BUILD_RECORD_NAME).write_text('{"key": "key"}')
    assert not is_current(tmp_path, "key")


def test_nothing_changed_is_found_without_importing_torch(tiny_bundle: Path) -> None:
    program = (
        "import sys; from specexport.cli import main\n"
        f"try: main(['build', {str(RECIPE)!r}, '-o', {str(tiny_bundle)!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime', 'optimum'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing changed" in done.stderr
