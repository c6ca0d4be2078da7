"""The PyTorch reference: transformers' own `generate` on the checkpoint that a bundle was built from.

Owns what makes the comparison fair: the same prompt ids, end tokens, rotary factors and vocabulary, as many threads
as asked for, and no sampling default that a checkpoint may bring along.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from specexport.bundle.record import RECIPE_NAME
from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.checkpoints.outline import outline_recipe
from specexport.context import quiet
from specexport.draft_kinds import NoneRecipe
from specexport.errors import SourceError, reason_of
from specexport.export import freeze_rope
from specexport.recipe.schema import Recipe, load_recipe
from specruntime import clock
from specruntime.bundle import LoadedBundle
from specruntime.check import Advance, Checker, CheckReport, Comparison
from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.sampling.params import SamplingParams, draw_seed

ReferenceMode = Literal["pytorch", "pytorch-compiled"]


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """Seconds are wall time from the prompt's ids to the first and to the last token."""

    token_ids: tuple[int, ...]
    first_seconds: float
    seconds: float


class PytorchReference:
    """A loaded checkpoint that answers prompts of token ids."""

    def __init__(self, checkpoint: Checkpoint, *, capacity: int, threads: int | None = None) -> None:
        """`threads` is set for the whole process, as torch has it; None leaves torch's own choice, the usable cores."""
        if threads is not None:
            torch.set_num_threads(threads)
        freeze_rope(checkpoint.model, capacity)
        self._checkpoint = checkpoint
        self._model = checkpoint.model
        self._model.generation_config = (
            GenerationConfig()
        )  # a checkpoint's own sampling defaults would join in

    @classmethod
    def of_bundle(cls, root: Path, threads: int | None = None) -> "PytorchReference":
        """Return the target of the bundle's own recipe. Raises `RecipeError`, `SourceError` or
        `CheckpointUnsupported`.
        """
        recipe = _bundled_recipe(root)
        checkpoint = load_checkpoint(recipe.target, recipe.precision)
        return cls(checkpoint, capacity=recipe.capacity, threads=threads)

    @property
    def model(self) -> PreTrainedModel:
        """The checkpoint's model, in evaluation mode."""
        return self._model

    def answer(
        self, ids: list[int], params: SamplingParams, max_new_tokens: int, mode: ReferenceMode = "pytorch"
    ) -> ReferenceAnswer:
        """One answer of batch 1. Of `params` only temperature, top_p and seed count."""
        prompt = torch.tensor([ids])
        heard = _FirstToken()
        config = self._config(params, max_new_tokens, mode)
        if params.temperature > 0:
            torch.manual_seed(draw_seed() if params.seed is None else params.seed)
        with quiet(), torch.inference_mode():
            started = clock.now()
            output = self._model.generate(  # type: ignore[operator]
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config, streamer=heard
            )
            seconds = clock.now() - started
        return ReferenceAnswer(tuple(output[0, len(ids) :].tolist()), heard.first_token - started, seconds)

    def warm_up(self, ids: list[int], max_new_tokens: int, mode: ReferenceMode) -> None:
        """Answer the longest prompt once: a static cache takes its size, and compiles for it, here.

        Raises `EngineFailed` when PyTorch cannot compile on this machine.
        """
        try:
            self.answer(ids, SamplingParams(), max_new_tokens, mode)
        except Exception as error:  # torch.compile raises whatever its compiler stack raises
            raise EngineFailed(
                f"PyTorch cannot run as {mode} here: {reason_of(error)}; install a C++ compiler, or measure without "
                "--pytorch"
            ) from error
        self.answer(ids[: len(ids) // 2 + 1], SamplingParams(), min(8, max_new_tokens), mode)

    def _config(self, params: SamplingParams, max_new_tokens: int, mode: ReferenceMode) -> GenerationConfig:
        checkpoint = self._checkpoint
        ends = list(checkpoint.eos_token_ids) or None
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=ends,
            pad_token_id=ends[0] if ends else 0,
            do_sample=params.temperature > 0,
        )
        if params.temperature > 0:
            config.temperature, config.top_p, config.top_k = params.temperature, params.top_p, 0
        if checkpoint.padded_vocab_size > checkpoint.vocab_size:
            config.suppress_tokens = list(range(checkpoint.vocab_size, checkpoint.padded_vocab_size))
        if mode == "pytorch-compiled":
            config.cache_implementation = "static"
            config.compile_config = _compile_config()
        return config


class _FirstToken(BaseStreamer):
    """Notes when the first token came; a streamer gets the prompt first, then each token."""

    def __init__(self) -> None:
        self.first_token = 0.0
        self._heard_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._heard_prompt and not self.first_token:
            self.first_token = clock.now()
        self._heard_prompt = True

    def end(self) -> None:
        pass


def _compile_config() -> CompileConfig:
    config = CompileConfig(fullgraph=False)
    # By default transformers compiles on accelerators only.
    config._compile_all_devices = True  # type: ignore[assignment]
    return config


def require_reference(root: Path) -> None:
    """Raise what `PytorchReference.of_bundle` finds wrong with files, config or tokenizer; read no weights."""
    recipe = _bundled_recipe(root)
    outline_recipe(recipe.model_copy(update={"draft": NoneRecipe(kind="none")}))


def _bundled_recipe(root: Path) -> Recipe:
    path = root / RECIPE_NAME
    if not path.is_file():
        raise SourceError(f"{root} has no {RECIPE_NAME}, which names the checkpoint: build the bundle again")
    return load_recipe(path)


AGAINST = "pytorch"


def require_comparable(bundle: LoadedBundle) -> None:
    """Raise what `check_pytorch` would refuse for want of no more than the recipe, config and tokenizer.

    `InvalidArgument` for weights in fewer bits; what the checkpoint's files raise.
    """
    _require_own_weights(bundle)
    require_reference(bundle.root)


def _require_own_weights(bundle: LoadedBundle) -> None:
    precision = bundle.manifest.precision
    if precision not in ("fp32", "fp16", "bf16"):
        raise InvalidArgument(
            f"{bundle.manifest.name} has {precision} weights, PyTorch the checkpoint's own, so their answers may part: "
            "`fidelity` in build.json says how far they are apart; leave --pytorch out"
        )


def check_pytorch(
    bundle: LoadedBundle,
    report: CheckReport,
    *,
    max_new_tokens: int | None = None,
    threads: int | None = None,
    advance: Advance = lambda step: None,
) -> CheckReport:
    """`report` with one comparison per check prompt added: plain greedy decoding against PyTorch's `generate`.

    Raises what loading the checkpoint of the bundle's recipe raises, `InvalidArgument` for weights in fewer bits.
    """
    _require_own_weights(bundle)
    reference = PytorchReference.of_bundle(bundle.root, threads)
    checker = Checker(bundle, max_new_tokens)
    compared: list[Comparison] = []
    for prompt in bundle.manifest.check.prompts:
        advance(f"{prompt.id}, PyTorch")
        ids, plain = checker.plain_answer(prompt)
        expected = reference.answer(ids, checker.greedy, checker.max_new_tokens).token_ids
        if plain.finish_reason == "capacity":  # PyTorch's cache grows on
            expected = expected[: len(plain.token_ids)]
        divergence = checker.diverge(ids, checker.greedy, expected, plain.token_ids)
        compared.append(Comparison(prompt.id, "greedy", AGAINST, len(expected), None, divergence))
    return replace(report, comparisons=(*report.comparisons, *compared))
