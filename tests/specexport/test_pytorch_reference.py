"""`specexport check --pytorch`: plain decoding against the checkpoint that the bundle's recipe names."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from specexport.cli import main
from specexport.errors import SourceError
from specexport.pytorch_reference import AGAINST, PytorchReference, check_pytorch, require_reference
from specruntime import SamplingParams, complete, open_bundle
from specruntime.check import check_bundle
from specruntime.errors import EngineFailed


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_every_greedy_token_is_pytorchs(tiny_bundle: Path) -> None:
    result = run("check", tiny_bundle, "--pytorch", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    against = [comparison["against"] for comparison in report["comparisons"]]
    assert against == ["plain"] * 4 + [AGAINST] * 2
    assert report["passed"] is True and all(c["divergence"] is None for c in report["comparisons"])


def test_another_checkpoint_is_told_apart_with_place_and_gap(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bundle"
    shutil.copytree(tiny_bundle, other)
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["target"]["source"]["random"]["seed"] = 5
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with open_bundle(other, verify=False) as bundle:
        report = check_pytorch(bundle, check_bundle(bundle), max_new_tokens=8)
    assert not report.passed
    failed = [comparison for comparison in report.comparisons if not comparison.passed]
    assert {comparison.against for comparison in failed} == {AGAINST}
    assert failed[0].divergence is not None and failed[0].divergence.logit_gap is not None


def test_a_changed_recipe_is_refused_by_its_hash_before_anything_is_compared(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.bundle"
    shutil.copytree(tiny_bundle, other)
    text = (other / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(text.replace("seed: 0", "seed: 5", 1))
    result = run("check", other, "--pytorch")
    assert result.exit_code == 1 and "recipe.yaml" in result.stderr


def test_a_checkpoint_that_is_gone_is_refused_before_anything_is_decoded(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.bundle"
    shutil.copytree(tiny_bundle, other)
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["target"]["source"] = str(tmp_path / "gone")
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(SourceError, match="gone: no such directory"):
        require_reference(other)

    def refuse(bundle: object) -> None:
        raise SourceError("refused first")

    monkeypatch.setattr("specexport.pytorch_reference.require_comparable", refuse)
    monkeypatch.setattr("specexport.cli.check.check_bundle", lambda *a, **k: pytest.fail("decoded"))
    result = run("check", tiny_bundle, "--pytorch")
    assert result.exit_code == 1 and "refused first" in result.stderr


def test_a_bundle_without_its_recipe_has_no_reference(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no recipe\.yaml, which names the checkpoint"):
        PytorchReference.of_bundle(tmp_path)


def test_the_compiled_reference_gives_the_same_tokens_and_never_the_padded_tail(tiny_bundle: Path) -> None:
    reference = PytorchReference.of_bundle(tiny_bundle, threads=1)
    prompt = [97, 98, 99, 97, 98]
    with open_bundle(tiny_bundle) as bundle:
        plain = complete(bundle.new_session(speculate=False), prompt, SamplingParams(max_tokens=24))
    eager = reference.answer(prompt, SamplingParams(), 24)
    assert eager.token_ids == plain.token_ids
    assert 0 < eager.first_seconds < eager.seconds
    sampled = reference.answer(prompt, SamplingParams(temperature=5.0, seed=1), 64)
    assert max(sampled.token_ids) < bundle.manifest.target.vocab_size
    assert (
        sampled.token_ids == reference.answer(prompt, SamplingParams(temperature=5.0, seed=1), 64).token_ids
    )


def test_a_machine_that_cannot_compile_says_what_to_do(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = PytorchReference.of_bundle(tiny_bundle, threads=1)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(reference, "answer", fail)
    with pytest.raises(
        EngineFailed, match="no compiler found; install a C\\+\\+ compiler, or measure without --pytorch"
    ):
        reference.warm_up([1, 2], 4, "pytorch-compiled")
