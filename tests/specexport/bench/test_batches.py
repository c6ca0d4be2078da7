"""`bench --batch`: every way decodes every prompt, and gives the same tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specexport.bench import batches
from specexport.bench.prompts import BenchPrompt
from specexport.build import build
from specexport.cli import main
from specexport.recipe.schema import load_recipe
from specruntime.bundle import open_bundle
from specruntime.sampling.params import SamplingParams
from specruntime.serving import BatchStepper
from tests.conftest import RECIPES


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = load_recipe(RECIPES / "tiny-random.yaml").model_copy(update={"batch": (1, 2, 4)})
    return build(recipe, tmp_path_factory.mktemp("batches") / "bundle")


def run(bundle: Path, prompts: Path, *options: str) -> tuple[int, str]:
    prompts.write_text("\n".join(json.dumps({"id": f"p{n}", "prompt": "ab " * (n + 2)}) for n in range(5)))
    command = ["bench", str(bundle), "--prompts", str(prompts), "--max-new-tokens", "12", "--repeat", "1"]
    result = CliRunner().invoke(main, [*command, *options])
    return result.exit_code, result.output


def test_every_size_is_measured_in_every_way(bundle: Path, tmp_path: Path) -> None:
    code, output = run(bundle, tmp_path / "p.jsonl", "--batch", "1,3,4", "--threads", "2", "--json")
    assert code == 0, output
    report = json.loads(output[output.index("{") :])
    assert report["machine"]["threads"] == 2
    found = report["batches"]
    assert [row["rows"] for row in found] == [1, 3, 4]
    assert found[0]["plain_vs_one_row"] == 1 and all(row["outputs_equal"] for row in found)
    assert all(row["plain"] > 0 and row["speculative"] > 0 and row["auto"] > 0 for row in found)
    assert found[2]["launches"] < found[0]["launches"] / 2, "rows share launches"


def test_a_scale_is_against_one_row_or_not_told(bundle: Path, tmp_path: Path) -> None:
    code, output = run(bundle, tmp_path / "p.jsonl", "--batch", "4,1", "--json")
    assert code == 0, output
    four, one = json.loads(output[output.index("{") :])["batches"]
    assert (four["rows"], one["rows"], one["plain_vs_one_row"]) == (4, 1, 1)
    assert four["plain_vs_one_row"] == pytest.approx(four["plain"] / one["plain"])
    code, output = run(bundle, tmp_path / "p.jsonl", "--batch", "2", "--json")
    assert json.loads(output[output.index("{") :])["batches"][0]["plain_vs_one_row"] is None
    assert run(bundle, tmp_path / "p.jsonl", "--batch", "2")[0] == 0


def test_no_way_finds_the_prompts_of_the_way_before(bundle: Path) -> None:
    prompts = (BenchPrompt("a", "ab " * 40), BenchPrompt("b", "cd " * 40))
    fed: list[int] = []

    def count(before: Callable[..., Any]) -> Callable[..., Any]:
        def decode(stepper: BatchStepper, *rest: Any) -> Any:
            found = before(stepper, *rest)
            fed.append(found.launches)
            return found

        return decode

    with open_bundle(bundle) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WAYS", ("plain", "plain", "plain"))
        patch.setattr(batches, "_speed", lambda size, runs: None)
        patch.setattr(batches, "_decode", count(batches._decode))
        batches.bench_batches(opened, prompts, [2], SamplingParams(max_tokens=4), 1, lambda step: None)
    assert len(set(fed)) == 1 and len(fed) == 3


@pytest.mark.parametrize(
    ("sizes", "said"),
    [("1,5", "this bundle holds 1 to 4 sequences"), ("0", "found 0"), ("two", "such as 1,2,4")],
)
def test_other_sizes_are_refused(bundle: Path, tmp_path: Path, sizes: str, said: str) -> None:
    code, output = run(bundle, tmp_path / "p.jsonl", "--batch", sizes)
    assert code in (1, 2) and said in output
