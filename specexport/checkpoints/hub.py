"""Checkpoints on the Hugging Face hub: downloaded once per revision, then read without a network."""

import json
from dataclasses import dataclass
from pathlib import Path

from specexport.cache.entries import text_sha256
from specexport.checkpoints.address import HubRepository
from specexport.checkpoints.local import Located
from specexport.errors import SourceError

_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class HubFiles:
    """What is fetched of a repository (`patterns`), and one of which weight files makes it whole, if any."""

    patterns: tuple[str, ...]
    weights: tuple[str, ...]
    tokenizer: bool


MODEL_FILES = HubFiles(
    ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"), ("model.safetensors",), tokenizer=True
)
OUTLINE_FILES = HubFiles(("*.json", "*.model", "*.txt", "*.jinja", "*.py"), (), tokenizer=True)
"""What says what a model is: all but its weights."""
DRAFT_FILES = HubFiles(
    ("*.json", "*.safetensors", "*.bin", "*.pt"),
    ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt"),
    tokenizer=False,
)
_DUPLICATES = ["original/*", "consolidated*", "onnx/*"]


def locate_hub(address: HubRepository, files: HubFiles = MODEL_FILES) -> Located:
    """Return the repository's snapshot; from the local hub cache when it is there, so later builds need no network.

    Raises `SourceError` for an unknown repository or revision, missing access rights, or no network.
    """
    directory = _cached(address, files) or _download(address, files)
    if missing := _missing_files(directory, files):
        expected = "a transformers checkpoint in safetensors" if files.tokenizer else "a draft"
        raise SourceError(
            f"{address}: no {missing[0]} in {directory}, expected {expected}; "
            "if its download was cut short, connect once and build again"
        )
    # A snapshot directory is named after its commit, which fixes every byte below it.
    return Located(directory, None, text_sha256(f"hub://{address.repository}@{directory.name}"))


def _cached(address: HubRepository, files: HubFiles) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        directory = _snapshot(address, files, local=True)
    except (LocalEntryNotFoundError, ValueError):
        return None
    has_tokenizer = not files.tokenizer or any((directory / name).is_file() for name in _TOKENIZERS)
    return directory if has_tokenizer and not _missing_files(directory, files) else None


def _missing_files(directory: Path, files: HubFiles) -> list[str]:
    """Return the files of a whole checkpoint that are not there; a download that was killed leaves some files out."""
    if not files.weights:
        return [name for name in ("config.json",) if not (directory / name).is_file()]
    index = directory / _INDEX
    weights = [next((name for name in files.weights if (directory / name).is_file()), files.weights[0])]
    if index.is_file():
        weights = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return [name for name in ("config.json", *weights) if not (directory / name).is_file()]


def _download(address: HubRepository, files: HubFiles) -> Path:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return _snapshot(address, files, local=False)
    except RevisionNotFoundError:
        raise SourceError(
            f"{address}: the repository has no revision {address.revision!r}; use a commit id"
        ) from None
    except GatedRepoError:
        raise SourceError(
            f"{address}: access is gated; accept its licence on the hub, then `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise SourceError(
            f"{address}: no such repository, or it is private; check the name or `hf auth login`"
        ) from None
    except (
        Exception
    ) as error:  # httpx and OS errors of many classes: all mean that the files could not be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(
            f"{address}: not in the local hub cache and the hub could not be reached ({reason}); "
            "connect once, or give a local directory as source"
        ) from None


def _snapshot(address: HubRepository, files: HubFiles, *, local: bool) -> Path:
    """Return the directory of the repository's files; `local`: only where the local hub cache has them. Raises its
    errors.
    """
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        address.repository,
        revision=address.revision,
        allow_patterns=list(files.patterns),
        ignore_patterns=_DUPLICATES,
        local_files_only=local,
    )
    return Path(str(found))
