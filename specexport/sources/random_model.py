"""Models of random weights, and noisy copies of a model: what tests draft and verify with."""

import copy
from typing import Any

import torch
from optimum.exporters.tasks import TasksManager
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from specexport.errors import CheckpointUnsupported, SourceError, reason_of
from specexport.recipe_sources import Noise, RandomModel
from specexport.refusals import require_known_class
from specexport.sources.byte_tokenizer import END_TOKEN_ID, TOKENIZER_SIZE
from specruntime.closed_schema import nearest

_DEFAULT_SIZES = {"vocab_size": 272, "max_position_embeddings": 512}
# Transformers' defaults name special tokens of vocabularies that a random model does not have.
_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def random_name(spec: RandomModel) -> str:
    """What messages and the bundle call the model."""
    return f"random {spec.architecture} (seed {spec.seed})"


def random_config(spec: RandomModel) -> PretrainedConfig:
    """The config of `spec.architecture` with its sizes.

    Raises `CheckpointUnsupported` for an architecture that no sizes can help, `SourceError` for unknown names, with
    the nearest.
    """
    if spec.architecture not in CONFIG_MAPPING:
        raise SourceError(
            f"source.random.architecture: found {spec.architecture!r}, "
            f"expected a transformers model type{nearest(spec.architecture, CONFIG_MAPPING)}"
        )
    config_class = CONFIG_MAPPING[spec.architecture]
    require_known_class(random_name(spec), config_class())
    known = {*config_class().to_dict(), *config_class.attribute_map}
    for key in spec.sizes:
        if key not in known:
            name = config_class.__name__
            raise SourceError(f"source.random.sizes.{key}: {name} has no such key{nearest(key, known)}")
    stated = {config_class.attribute_map.get(key, key) for key in spec.sizes}
    sizes: dict[str, Any] = {
        key: value
        for key, value in _DEFAULT_SIZES.items()
        if key in known and config_class.attribute_map.get(key, key) not in stated
    }
    sizes |= spec.sizes
    try:
        return AutoConfig.for_model(spec.architecture, **{**_token_ids(sizes.get("vocab_size")), **sizes})
    except Exception as error:  # config classes raise their own, some not even ValueErrors
        reason = reason_of(error).rpartition("Error: ")[2]  # after the names of its validators
        raise SourceError(
            f"source.random.sizes: {config_class.__name__} does not take them: {reason}"
        ) from None


def _token_ids(vocab_size: Any) -> dict[str, int | None]:
    has_end = isinstance(vocab_size, int) and vocab_size >= TOKENIZER_SIZE
    return {**dict.fromkeys(_TOKEN_KEYS), "eos_token_id": END_TOKEN_ID if has_end else None}


def random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A causal language model of this config, fp32, the same weights for the same seed."""
    try:
        model_class = TasksManager.get_model_class_for_task("text-generation", model_type=config.model_type)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = model_class.from_config(config, dtype=torch.float32)
    except Exception as error:  # each architecture fails in its own way on sizes that do not fit together
        raise CheckpointUnsupported(
            f"source.random.sizes: no {config.model_type} can be made of them: {reason_of(error)}"
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
