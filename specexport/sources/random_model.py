"""Models of random weights, and noisy copies of a model: what tests draft and verify with."""

import copy
from difflib import get_close_matches
from typing import Any

import torch
from optimum.exporters.tasks import TasksManager
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from specexport.errors import CheckpointUnsupported, SourceError
from specexport.recipe_sources import Noise, RandomModel
from specexport.sources.byte_tokenizer import END_TOKEN_ID, TOKENIZER_SIZE

_DEFAULT_SIZES = {"vocab_size": 272, "max_position_embeddings": 512}
# Transformers' defaults name special tokens of vocabularies that a random model does not have.
_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def random_config(spec: RandomModel) -> PretrainedConfig:
    """The config of `spec.architecture` with its sizes. Raises `SourceError` for unknown names, with the nearest."""
    if spec.architecture not in CONFIG_MAPPING:
        close = get_close_matches(spec.architecture, list(CONFIG_MAPPING), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SourceError(
            f"random.architecture: found {spec.architecture!r}, expected a transformers model type{hint}"
        )
    config_class = CONFIG_MAPPING[spec.architecture]
    known = {*config_class().to_dict(), *config_class.attribute_map}
    for key in spec.sizes:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SourceError(f"random.sizes.{key}: {config_class.__name__} has no such key{hint}")
    vocabulary = int(str(spec.sizes.get("vocab_size", _DEFAULT_SIZES["vocab_size"])))
    tokens: dict[str, Any] = dict.fromkeys(_TOKEN_KEYS)
    if vocabulary >= TOKENIZER_SIZE:
        tokens["eos_token_id"] = END_TOKEN_ID
    defaults = {key: value for key, value in _DEFAULT_SIZES.items() if key in known}
    try:
        return AutoConfig.for_model(spec.architecture, **{**defaults, **tokens, **spec.sizes})
    except Exception as error:  # config classes raise their own, some not even ValueErrors
        reason = " ".join(str(error).split())
        raise SourceError(f"random.sizes: {config_class.__name__} does not take them: {reason}") from None


def random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A causal language model of this config, fp32, the same weights for the same seed."""
    try:
        model_class = TasksManager.get_model_class_for_task("text-generation", model_type=config.model_type)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = model_class.from_config(config, dtype=torch.float32)
    except Exception as error:  # each architecture fails in its own way on sizes that do not fit together
        reason = " ".join(str(error).split())[:200]
        raise CheckpointUnsupported(
            f"random.architecture {config.model_type!r}: no model can be made: {reason}"
        ) from None
    model.eval()
    return model


def noisy_copy(model: PreTrainedModel, noise: Noise) -> PreTrainedModel:
    """A copy of `model` with Gaussian noise on every weight, in units of that weight tensor's standard deviation."""
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(noise.seed)
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.numel() > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.add_((noise.scale * parameter.float().std() * drawn).to(parameter.dtype))
    copied.eval()
    return copied
