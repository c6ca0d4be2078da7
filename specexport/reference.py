"""The PyTorch reference: transformers' own `generate` on the checkpoint that a bundle was built from.

Owns what makes the comparison fair: the same prompt ids, end tokens, rotary factors and vocabulary, as many threads
as asked for, and no sampling default that a checkpoint may bring along.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from specexport.build import RECIPE_NAME
from specexport.checkpoint import Checkpoint, load_checkpoint
from specexport.errors import SourceError, reason_of
from specexport.export import freeze_rope
from specexport.outline import outline_recipe
from specexport.quiet import quiet
from specexport.recipe import NoneDraft, Recipe, load_recipe
from specruntime import clock
from specruntime.errors import EngineFailed
from specruntime.params import SamplingParams, draw_seed

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
        """The target of the bundle's own recipe. Raises `RecipeError`, `SourceError` or `CheckpointUnsupported`."""
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
        """Answers the longest prompt once: a static cache takes its size, and compiles for it, here.

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
    # transformers compiles on accelerators only, unless told so.
    config._compile_all_devices = True  # type: ignore[assignment]
    return config


def require_reference(root: Path) -> None:
    """Raises what `PytorchReference.of_bundle` finds wrong with files, config or tokenizer; reads no weights."""
    recipe = _bundled_recipe(root)
    outline_recipe(recipe.model_copy(update={"draft": NoneDraft(kind="none")}))


def _bundled_recipe(root: Path) -> Recipe:
    path = root / RECIPE_NAME
    if not path.is_file():
        raise SourceError(f"{root} has no {RECIPE_NAME}, which names the checkpoint: build the bundle again")
    return load_recipe(path)
