"""Takes over the tokenizer of a Hugging Face directory: its tokenizer.json as it is, whatever class its config names.

transformers rebuilds the pipeline for many classes; the file says how the model's text was cut. What tokenizer_config
adds (tokens, and tokens before and after a text) is added as transformers' fast tokenizers add it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specexport.errors import CheckpointUnsupported, reason_of
from specexport.tokenizer.files import CONFIG_FILE, save_tokenizer
from specexport.tokenizer.probes import (
    PROBE_TEXTS,
    first_decoding_difference,
    first_difference,
    with_added_tokens,
)
from specexport.tokenizer.sentence_piece import sentence_piece_tokenizer
from specexport.vocabulary import TOKENIZER_FILE

_SETTINGS = (
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
)
_PIECES = "tokenizer.model"
_WORDS = ("vocab.json", "vocab.txt")


def write_directory_tokenizer(
    source: str, directory: Path, trust_remote_code: bool, destination: Path
) -> tuple[str, ...]:
    """Writes the tokenizer of the checkpoint in `directory` to `destination`; nothing where it has none.

    Returns what the build should say of it. Raises `CheckpointUnsupported` for one that cannot be taken over.
    """
    if (directory / TOKENIZER_FILE).is_file():
        return _take_over(source, directory, destination)
    if (directory / _PIECES).is_file():
        built = _with_flags(
            sentence_piece_tokenizer(source, directory, _config(directory)), _config(directory)
        )
        return _converted(source, directory, built, destination)
    if any((directory / name).is_file() for name in (*_WORDS, CONFIG_FILE)):
        return _converted(
            source, directory, _built_by_class(source, directory, trust_remote_code), destination
        )
    return ()


def _take_over(source: str, directory: Path, destination: Path) -> tuple[str, ...]:
    try:
        own = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        fast: Any = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # tokenizers and transformers raise anything here, down to bare Exception
        raise _unreadable(source, error) from None
    if fast.split_special_tokens:
        raise CheckpointUnsupported(
            f"{source}: {CONFIG_FILE} sets split_special_tokens, so that no special token is found in a text; expected "
            "false, a chat template writes them as text"
        )
    template = fast.chat_template
    save_tokenizer(
        fast.backend_tokenizer,
        destination,
        chat_template=template.get("default") if isinstance(template, dict) else template,
        **fast.special_tokens_map,
    )
    taken = Tokenizer.from_file(str(destination / TOKENIZER_FILE))
    own.no_truncation()
    own.no_padding()
    notes = _require_same(source, own, taken)
    return (*notes, *_contradictions(source, _config(directory), fast, taken))


def _require_same(source: str, own: Tokenizer, taken: Tokenizer) -> tuple[str, ...]:
    """Raises `CheckpointUnsupported` where the bundle's tokenizer parts from the file; returns what was added to it."""
    before, after = own.get_added_tokens_decoder(), taken.get_added_tokens_decoder()
    added = [token.content for index, token in after.items() if index not in before]
    texts = [*PROBE_TEXTS, *with_added_tokens(before.values())]
    plain = [text for text in texts if not any(token in text for token in added)]
    difference = first_difference(
        lambda text: taken.encode(text, add_special_tokens=False).ids,
        lambda text: own.encode(text, add_special_tokens=False).ids,
        plain,
    ) or first_decoding_difference(taken, own)
    if difference is not None:
        raise CheckpointUnsupported(
            f"{source}: with what {CONFIG_FILE} adds, its tokenizer parts from its {TOKENIZER_FILE}: {difference}; "
            "make the two agree"
        )
    if not added:
        return ()
    return (f"{source}: {CONFIG_FILE} adds {_listed(added)} to the tokens of {TOKENIZER_FILE}",)


def _contradictions(source: str, config: Mapping[str, Any], fast: Any, taken: Tokenizer) -> Iterator[str]:
    """transformers drops the flags where there is a tokenizer.json; a checkpoint that says both is worth a line."""
    tokens = taken.encode("a").tokens
    for name, token, place in (("bos", fast.bos_token, 0), ("eos", fast.eos_token, -1)):
        flag, adds = config.get(f"add_{name}_token"), len(tokens) > 1 and tokens[place] == token
        if isinstance(flag, bool) and flag is not adds:
            yield (
                f"{source}: {CONFIG_FILE} says add_{name}_token: {str(flag).lower()}, but {TOKENIZER_FILE} "
                f"{'adds' if adds else 'does not add'} {token!r} to a text; the file holds, as in transformers"
            )


def _converted(source: str, directory: Path, built: Tokenizer, destination: Path) -> tuple[str, ...]:
    """As `_take_over`, for a directory that gets the tokenizer.json it lacks."""
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in _SETTINGS:
            if (directory / name).is_file():
                copyfile(directory / name, place / name)
        built.save(str(place / TOKENIZER_FILE))
        return _take_over(source, place, destination)


def _built_by_class(source: str, directory: Path, trust_remote_code: bool) -> Tokenizer:
    """What the class that the checkpoint names makes of its vocabulary; only a class can say how text is cut."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # tokenizer backends raise anything, down to bare Exception
        raise _unreadable(source, error) from None
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointUnsupported(
            f"{source}: its tokenizer runs in Python only, expected one with a {TOKENIZER_FILE}"
        )
    built: Tokenizer = tokenizer.backend_tokenizer
    return built


def _with_flags(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Tokenizer:
    """Adds the tokens before and after a text that a config without tokenizer.json asks for, as transformers does."""
    keys = ("bos_token", "eos_token", "add_bos_token", "add_eos_token")
    stated = {key: config[key] for key in keys if config.get(key) is not None}
    texts = {key: value["content"] if isinstance(value, dict) else value for key, value in stated.items()}
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **texts)
    built: Tokenizer = fast.backend_tokenizer
    return built


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return config


def _unreadable(source: str, error: Exception) -> CheckpointUnsupported:
    return CheckpointUnsupported(f"{source}: its tokenizer cannot be loaded: {reason_of(error)}")


def _listed(tokens: list[str]) -> str:
    return ", ".join(map(repr, tokens[:4])) + (f" and {len(tokens) - 4} more" if len(tokens) > 4 else "")
