"""Models of random weights, and noisy copies of a model: what tests draft and verify with."""

import copy
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.tasks import TasksManager
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from specexport.checkpoints.refusals import require_known_class
from specexport.errors import CheckpointUnsupported, SourceError, reason_of
from specexport.recipe.sources import Noise, RandomModel
from specruntime.manifest.messages import nearest

BYTE_TOKENS = 256
SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>")
END_TOKEN_ID = BYTE_TOKENS
TOKENIZER_SIZE = BYTE_TOKENS + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer; the same files on every machine."""
    vocabulary = {_byte_character(byte): byte for byte in range(BYTE_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[0],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def write_byte_tokenizer(directory: Path) -> tuple[str, ...]:
    """Write tokenizer.json, tokenizer_config.json and the chat template; nothing is to be said of them."""
    byte_tokenizer().save_pretrained(directory)
    return ()


def _byte_character(byte: int) -> str:
    """GPT-2's printable stand-in for a byte: itself where printable, else the next free character from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(1 for other in range(byte) if other not in printable))


_DEFAULT_SIZES = {"vocab_size": 272, "max_position_embeddings": 512}
# Transformers' defaults name special tokens of vocabularies that a random model does not have.
_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def random_name(spec: RandomModel) -> str:
    """Return what messages and the bundle call the model."""
    return f"random {spec.architecture} (seed {spec.seed})"


def random_config(spec: RandomModel) -> PretrainedConfig:
    """Return the config of `spec.architecture` with its sizes.

    Raises `CheckpointUnsupported` for an architecture that no sizes can help, `SourceError` for unknown names, with
    the nearest.
    """
    if spec.architecture not in CONFIG_MAPPING:
        raise SourceError(
            f"found {spec.architecture!r}, "
            f"expected a transformers model type{nearest(spec.architecture, CONFIG_MAPPING)}",
            key="source.random.architecture",
        )
    config_class = CONFIG_MAPPING[spec.architecture]
    require_known_class(random_name(spec), config_class())
    known = {*config_class().to_dict(), *config_class.attribute_map}
    for key in spec.sizes:
        if key not in known:
            name = config_class.__name__
            raise SourceError(
                f"{name} has no such key{nearest(key, known)}", key=f"source.random.sizes.{key}"
            )
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
            f"{config_class.__name__} does not take them: {reason}", key="source.random.sizes"
        ) from None


def _token_ids(vocab_size: Any) -> dict[str, int | None]:
    has_end = isinstance(vocab_size, int) and vocab_size >= TOKENIZER_SIZE
    return {**dict.fromkeys(_TOKEN_KEYS), "eos_token_id": END_TOKEN_ID if has_end else None}


def random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Return a causal language model of this config, fp32, the same weights for the same seed."""
    try:
        model_class = TasksManager.get_model_class_for_task("text-generation", model_type=config.model_type)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = model_class.from_config(config, dtype=torch.float32)
    except Exception as error:  # each architecture fails in its own way on sizes that do not fit together
        raise CheckpointUnsupported(
            f"no {config.model_type} can be made of them: {reason_of(error)}", key="source.random.sizes"
        ) from None
    model.eval()
    return model


def noisy_copy(model: PreTrainedModel, noise: Noise) -> PreTrainedModel:
    """Return a copy of `model` with Gaussian noise on every weight, in units of that weight tensor's standard
    deviation.
    """
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(noise.seed)
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.numel() > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.add_((noise.scale * parameter.float().std() * drawn).to(parameter.dtype))
    copied.eval()
    return copied
