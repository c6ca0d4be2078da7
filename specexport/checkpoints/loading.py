"""Loads a model for export: PyTorch weights on the CPU, its tokenizer files, its vocabulary and end tokens.

What cannot become a bundle is refused here by `refusals`; whether its attention fits a graph is judged by the export.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import torch
from optimum.exporters.tasks import TasksManager
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from specexport.checkpoints.address import parse_address
from specexport.checkpoints.local import Located, is_pruned
from specexport.checkpoints.locate import locate
from specexport.checkpoints.named import files_digest, source_digest
from specexport.checkpoints.refusals import (
    require_all_weights,
    require_finite_weights,
    require_known_rope,
    require_language_model,
    unsupported_config,
    with_new_rope_name,
)
from specexport.context import quiet
from specexport.draft_models.pruned import load_pruned
from specexport.draft_models.targets import draft_target
from specexport.errors import CheckpointUnsupported, reason_of
from specexport.export import check_config
from specexport.gguf.metadata import gguf_config
from specexport.gguf.weights import gguf_weights
from specexport.recipe.schema import ModelSource, NoiseSource, Precision, RandomSource, Recipe
from specexport.recipe.sources import naming_source
from specexport.tokenizer.chat_templates import check_chat_template
from specexport.tokenizer.directory_tokenizer import write_directory_tokenizer
from specexport.tokenizer.files import (
    TokenizerFiles,
    end_token_ids,
    real_vocab_size,
    require_shared_vocabulary,
    tokenizer_files,
)
from specexport.tokenizer.gguf_tokenizer import write_gguf_tokenizer

TASK = "text-generation-with-past"
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model. `model` is in eval mode, on the CPU, in the recipe's precision.

    `tokenizer` is a directory with tokenizer.json, tokenizer_config.json and, for chat models, chat_template.jinja.
    Ids in [vocab_size, padded_vocab_size) have rows in the LM head but no token. `notes` are lines that a build says.
    """

    name: str
    model: PreTrainedModel
    config: PretrainedConfig
    tokenizer: Path | None
    source_digest: str
    vocab_size: int
    padded_vocab_size: int
    eos_token_ids: tuple[int, ...]
    generation_config: GenerationConfig
    notes: tuple[str, ...] = ()


def load_checkpoint(
    spec: ModelSource, precision: Precision, *, target: Checkpoint | None = None
) -> Checkpoint:
    """Load `recipe.target`, or `recipe.draft` together with the loaded `target` it drafts for.

    Raises `SourceError`, `CheckpointUnsupported`, or, for a draft, `TokenizerMismatch`.
    """
    with naming_source("target" if target is None else "draft"), quiet(), gguf_read_once():
        if isinstance(spec.source, str):
            loaded = _load_files(spec.source, spec, precision, target)
        elif isinstance(spec.source, RandomSource):
            loaded = _make_random(spec.source, spec, precision)
        else:
            loaded = _add_noise(spec.source, spec, target)
    if target is not None:
        require_shared_vocabulary(
            (target.name, target.tokenizer, target.vocab_size),
            (loaded.name, loaded.tokenizer, loaded.vocab_size),
        )
    return loaded


def known_config(spec: ModelSource) -> PretrainedConfig | None:
    """Return a checkpoint's config, without loading weights; None where it has none of its own.

    Raises as `load_checkpoint`.
    """
    if isinstance(spec.source, NoiseSource):
        return None
    if isinstance(spec.source, RandomSource):
        from specexport.checkpoints.random_model import random_config

        return random_config(spec.source.random)
    located = locate(parse_address(spec.source), spec.sha256)
    if is_pruned(located.directory):
        return None
    with quiet(), gguf_read_once():
        return read_config(spec.source, located, spec.trust_remote_code)


def known_positions(spec: ModelSource) -> int | None:
    """Return the positions that a checkpoint's config states, without loading weights; None where it states none of its
    own.

    Raises as `load_checkpoint`.
    """
    config = known_config(spec)
    return None if config is None else positions_of(config)


def known_tokenizer(spec: ModelSource) -> Path | None:
    """Return a checkpoint's tokenizer files, without loading weights; None where it has none. Raises as
    `load_checkpoint`.
    """
    if isinstance(spec.source, NoiseSource):
        return None
    if isinstance(spec.source, RandomSource):
        from specexport.checkpoints.random_model import random_config

        return byte_tokenizer(random_config(spec.source.random)).directory
    with quiet(), gguf_read_once():
        located = locate(parse_address(spec.source), spec.sha256)
        return stored_tokenizer(spec.source, located, spec).directory


def positions_of(config: PretrainedConfig) -> int | None:
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def require_positions(recipe: Recipe, side: str, name: str, config: PretrainedConfig) -> None:
    """Raise `CheckpointUnsupported` when a model's positions end before its cache does, with the key to change."""
    limit = positions_of(config)
    capacity = recipe.draft_capacity if side == "draft" else recipe.capacity
    if limit is None or limit >= capacity:
        return
    if side == "target":
        raise CheckpointUnsupported(
            f"found {capacity}, expected at most {limit}, the positions that {name} knows", key="capacity"
        )
    if recipe.draft.own_capacity is not None:
        raise CheckpointUnsupported(
            f"found {capacity}, expected at most {limit}, the positions that {name} knows; lower it: "
            "drafting ends where the draft's cache is full",
            key="draft.capacity",
        )
    raise CheckpointUnsupported(
        f"{name} knows {limit} positions, expected at least {capacity}, the recipe's capacity; set "
        f"draft.capacity: {limit}, where drafting then ends, or lower capacity",
        key="draft.source",
    )


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """While the block runs, readers and name tables are made once per file and architecture. Both are read-only.

    The file is opened for the config and again for the weights, and every token of its vocabulary is parsed each time;
    transformers rebuilds the table of names once per module of the model.
    """
    with (
        patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield


def _load_files(
    source: str, spec: ModelSource, precision: Precision, target: Checkpoint | None
) -> Checkpoint:
    located = locate(parse_address(source), spec.sha256)
    if is_pruned(located.directory):
        return _load_pruned(source, located, spec, target)
    config = read_config(source, located, spec.trust_remote_code)
    require_language_model(source, config)
    check_config(config, trust_remote_code=spec.trust_remote_code)  # before minutes of reading weights
    tokenizer = stored_tokenizer(source, located, spec)
    model = _read_weights(source, located, config, precision, spec.trust_remote_code)
    return _describe(source, model, tokenizer, files_digest(located, spec))


def _load_pruned(source: str, located: Located, spec: ModelSource, target: Checkpoint | None) -> Checkpoint:
    """Return a draft of some of the target's layers; embeddings, LM head and tokenizer are the target's."""
    if target is None:
        raise CheckpointUnsupported(
            f"{source}: is a pruned draft, which lacks the tables it takes from its target; expected a whole model "
            "here, name this one as the draft"
        )
    fitted = draft_target(target.model, name=target.name, vocab_size=target.vocab_size)
    model = load_pruned(located.directory, fitted, source)
    return _describe(
        source, model, TokenizerFiles(target.tokenizer), source_digest(spec, target.source_digest)
    )


def _make_random(source: RandomSource, spec: ModelSource, precision: Precision) -> Checkpoint:
    from specexport.checkpoints.random_model import random_config, random_model, random_name

    name = random_name(source.random)
    config = random_config(source.random)
    require_language_model(name, config)
    model = random_model(config, source.random.seed)
    torch.nn.Module.to(model, DTYPES[precision])
    digest = source_digest(spec)
    return _describe(name, model, byte_tokenizer(config), digest)


def _add_noise(source: NoiseSource, spec: ModelSource, target: Checkpoint | None) -> Checkpoint:
    from specexport.checkpoints.random_model import noisy_copy

    assert target is not None, "a draft of noise is loaded together with its target"
    model = noisy_copy(target.model, source.noise_of_target)
    name = f"{target.name} with noise {source.noise_of_target.scale}"
    return _describe(name, model, TokenizerFiles(target.tokenizer), source_digest(spec, target.source_digest))


def read_config(source: str, located: Located, trust_remote_code: bool) -> PretrainedConfig:
    if located.gguf_file is not None:
        return gguf_config(source, located.directory / located.gguf_file)
    try:
        stated, _ = PretrainedConfig.get_config_dict(located.directory, local_files_only=True)
        if (renamed := with_new_rope_name(stated)) is not None:
            config: PretrainedConfig = CONFIG_MAPPING[renamed["model_type"]].from_dict(renamed)
        else:
            config = AutoConfig.from_pretrained(
                located.directory, trust_remote_code=trust_remote_code, local_files_only=True
            )
    except Exception as error:  # transformers raises many classes here, all of them about these files
        raise unsupported_config(source, error) from None
    if not hasattr(config, "auto_map"):  # code of the checkpoint's own may have scaling of its own
        require_known_rope(source, config)
    return config


def _read_weights(
    source: str, located: Located, config: PretrainedConfig, precision: Precision, trust_remote_code: bool
) -> PreTrainedModel:
    dtype = DTYPES[precision]
    if located.gguf_file is None:
        model_class = TasksManager.get_model_class_for_task(TASK, model_type=config.model_type)
        place: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    else:
        model_class = AutoModelForCausalLM._model_mapping[type(config)]
        place = {"state_dict": gguf_weights(source, located.directory / located.gguf_file, config, dtype)}
    try:
        model, report = model_class.from_pretrained(
            None if located.gguf_file else located.directory,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name and shape
            **place,
        )
    except Exception as error:  # safetensors, gguf, torch and transformers each have their own
        raise CheckpointUnsupported(
            f"{source}: its weights cannot be loaded as {config.model_type}: {reason_of(error)}"
        ) from None
    require_all_weights(source, config.model_type, report)
    require_finite_weights(source, model)
    loaded: PreTrainedModel = model.eval()
    return loaded


def stored_tokenizer(source: str, located: Located, spec: ModelSource) -> TokenizerFiles:
    return tokenizer_files(
        files_digest(located, spec),
        lambda scratch: _write_tokenizer(source, located, spec.trust_remote_code, scratch),
    )


def byte_tokenizer(config: PretrainedConfig) -> TokenizerFiles:
    """Return the byte tokenizer, for a random model with an id for each of its tokens; no files for a smaller one."""
    from specexport.checkpoints.random_model import TOKENIZER_SIZE, write_byte_tokenizer

    enough = int(config.vocab_size) >= TOKENIZER_SIZE
    return tokenizer_files("bytes", write_byte_tokenizer) if enough else TokenizerFiles(None)


def _write_tokenizer(
    source: str, located: Located, trust_remote_code: bool, destination: Path
) -> tuple[str, ...]:
    if located.gguf_file is not None:
        notes = write_gguf_tokenizer(source, located.directory / located.gguf_file, destination)
    else:
        notes = write_directory_tokenizer(source, located.directory, trust_remote_code, destination)
    return (*notes, *check_chat_template(source, destination))


def _describe(name: str, model: PreTrainedModel, tokenizer: TokenizerFiles, digest: str) -> Checkpoint:
    head = model.get_output_embeddings()
    if head is None:
        raise CheckpointUnsupported(
            f"{name}: {model.config.model_type} has no LM head, expected a causal language model"
        )
    rows = int(head.weight.shape[0])
    vocab_size = real_vocab_size(tokenizer.directory, rows)
    generation_config = model.generation_config or GenerationConfig()
    stated = (generation_config.eos_token_id, model.config.eos_token_id)
    ends = end_token_ids(tokenizer.directory, stated, vocab_size)
    generation_config.eos_token_id = (
        list(ends) or None
    )  # so that the PyTorch reference stops where the bundle does
    return Checkpoint(
        name=name,
        model=model,
        config=model.config,
        tokenizer=tokenizer.directory,
        source_digest=digest,
        vocab_size=vocab_size,
        padded_vocab_size=rows,
        eos_token_ids=ends,
        generation_config=generation_config,
        notes=tokenizer.notes,
    )
