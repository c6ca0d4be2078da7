"""Takes over the tokenizer of a Hugging Face directory: its tokenizer.json as it is, whatever class its config names.

transformers rebuilds the pipeline for many classes; the file says how the model's text was cut. What tokenizer_config
adds (tokens, and tokens before and after a text) is added as transformers' fast tokenizers add it.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from specexport.errors import CheckpointUnsupported, reason_of
from specexport.tokenizer.files import CONFIG_FILE, TEMPLATE_FILE, TOKENIZER_FILE, save_tokenizer, token_text
from specexport.tokenizer.probes import (
    PROBE_TEXTS,
    first_decoding_difference,
    first_difference,
    with_added_tokens,
)
from specexport.tokenizer.sentence_piece import sentence_piece_tokenizer

_TOKENS_MAP = "special_tokens_map.json"
_SETTINGS = (
    _TOKENS_MAP,
    "added_tokens.json",
    TEMPLATE_FILE,
    "chat_template.json",
    "config.json",
)
_PIECES = "tokenizer.model"
_WORDS = ("vocab.json", "vocab.txt")


def write_directory_tokenizer(
    source: str, directory: Path, trust_remote_code: bool, destination: Path
) -> tuple[str, ...]:
    """Write the tokenizer of the checkpoint in `directory` to `destination`; nothing where it has none.

    Returns what the build should say of it. Raises `CheckpointUnsupported` for one that cannot be taken over.
    """
    if (directory / TOKENIZER_FILE).is_file():
        fast, taken, notes = _take_over(source, directory, destination)
        config = _settings(source, directory, CONFIG_FILE)
        return (*notes, *_contradictions(config, fast, taken))
    if (directory / _PIECES).is_file():
        config = _settings(source, directory, CONFIG_FILE)
        built, named = sentence_piece_tokenizer(source, directory, config)
        stated = _stated_tokens(source, directory, config)
        named = {
            name: token
            for name, token in (named | _class_tokens(config, built) | stated).items()
            if token is not None
        }
        built = _with_flags(source, built, config, named)
        return _converted(source, directory, built, config | named, destination)
    if any((directory / name).is_file() for name in (*_WORDS, CONFIG_FILE)):
        tokenizer = _built_by_class(source, directory, trust_remote_code)
        config = _settings(source, directory, CONFIG_FILE) | tokenizer.special_tokens_map
        return _converted(source, directory, tokenizer.backend_tokenizer, config, destination)
    return ()


def _take_over(source: str, directory: Path, destination: Path) -> tuple[Any, Tokenizer, tuple[str, ...]]:
    """Return transformers' fast tokenizer, what the bundle got of it, and notes."""
    try:
        own = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        fast: Any = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # tokenizers and transformers raise anything here, down to bare Exception
        raise _unreadable(source, error) from None
    _require_one_split(source, own)
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
    return fast, taken, _require_same(source, own, taken)


def _require_one_split(source: str, own: Tokenizer) -> None:
    """Raise `CheckpointUnsupported` for a model that splits one text in several ways; transformers would do that."""
    dropout = getattr(own.model, "dropout", None)
    if dropout:
        raise CheckpointUnsupported(
            f"{source}: the model in its {TOKENIZER_FILE} has dropout {dropout:.3g}, which splits equal texts at "
            "random, as in training; expected null, set it so"
        )


def _require_same(source: str, own: Tokenizer, taken: Tokenizer) -> tuple[str, ...]:
    """Raise `CheckpointUnsupported` where the bundle's tokenizer differs from the file; return what it adds."""
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
            f"{source}: with what {CONFIG_FILE} adds, its tokenizer differs from its {TOKENIZER_FILE}: {difference}; "
            "make the two agree"
        )
    if not added:
        return ()
    return (f"{CONFIG_FILE} adds {_listed(added)} to the tokens of {TOKENIZER_FILE}",)


def _contradictions(config: Mapping[str, Any], fast: Any, taken: Tokenizer) -> Iterator[str]:
    """Yield a line for a checkpoint whose flags contradict its tokenizer.json: transformers drops the flags then."""
    tokens = taken.encode("a").tokens
    for name, token, place in (("bos", fast.bos_token, 0), ("eos", fast.eos_token, -1)):
        flag, adds = config.get(f"add_{name}_token"), len(tokens) > 1 and tokens[place] == token
        shown = f"a {name} token" if token is None else repr(token)
        if isinstance(flag, bool) and flag is not adds:
            yield (
                f"{CONFIG_FILE} says add_{name}_token: {str(flag).lower()}, but {TOKENIZER_FILE} "
                f"{'adds' if adds else 'does not add'} {shown} to a text; the file holds, as in transformers"
            )


def _converted(
    source: str, directory: Path, built: Tokenizer, config: Mapping[str, Any], destination: Path
) -> tuple[str, ...]:
    """As `_take_over`, for a directory that gets the tokenizer.json it lacks and a `config` with all named tokens."""
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in _SETTINGS:
            if (directory / name).is_file():
                copyfile(directory / name, place / name)
        (place / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
        built.save(str(place / TOKENIZER_FILE))
        return _take_over(source, place, destination)[2]


def _built_by_class(source: str, directory: Path, trust_remote_code: bool) -> Any:
    """Return what the class that the checkpoint names makes of its vocabulary; only a class can say how text is cut."""
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
    return tokenizer


def _stated_tokens(source: str, directory: Path, config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the named tokens of a directory's files; None for one that is set to null.

    As transformers reads them: special_tokens_map.json, which older releases wrote, goes before tokenizer_config.json,
    unless this lists its added tokens, which newer releases do.
    """
    files = [(CONFIG_FILE, config)]
    if "added_tokens_decoder" not in config:
        files.append((_TOKENS_MAP, _settings(source, directory, _TOKENS_MAP)))
    stated: dict[str, str | None] = {}
    for file, settings in files:
        for name in PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES:
            if name not in settings:
                continue
            stated[name] = token_text(settings[name])
            if stated[name] is None and settings[name] is not None:
                raise CheckpointUnsupported(
                    f"{source}: {file}: {name} is {settings[name]!r}, expected the token's text, or an object with "
                    "its text under content; correct the file"
                )
    return stated


def _class_tokens(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """Return the tokens that the class of the config names where no file does, as far as the vocabulary has them."""
    named = config.get("tokenizer_class")
    found = tokenizer_class_from_name(named) if isinstance(named, str) else None
    if found is None:
        return {}
    defaults = {
        name: token_text(parameter.default)
        for name, parameter in inspect.signature(found).parameters.items()
        if name in PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES
    }
    return {
        name: token
        for name, token in defaults.items()
        if token is not None and tokenizer.token_to_id(token) is not None
    }


def _with_flags(
    source: str, tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]
) -> Tokenizer:
    """Add the tokens before and after a text that a config without tokenizer.json asks for, as transformers does."""
    flags = {key: config[key] for key in ("add_bos_token", "add_eos_token") if config.get(key) is not None}
    for key, flag in flags.items():
        token = key.removeprefix("add_")
        if not isinstance(flag, bool):
            raise CheckpointUnsupported(f"{source}: {CONFIG_FILE}: {key} is {flag!r}, expected true or false")
        if flag and token not in named:
            raise CheckpointUnsupported(
                f"{source}: {CONFIG_FILE} says {key}: true, but neither it nor {_TOKENS_MAP} nor {_PIECES} names a "
                f"{token}; name one, or set {key}: false"
            )
    texts = {key: named[key] for key in ("bos_token", "eos_token") if key in named}
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **texts, **flags)
    built: Tokenizer = fast.backend_tokenizer
    return built


def _settings(source: str, directory: Path, name: str) -> dict[str, Any]:
    """One of the directory's JSON files; empty where it is missing."""
    path = directory / name
    try:
        settings: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:  # not JSON, or not UTF-8
        raise _unreadable(source, ValueError(f"{name}: {error}")) from None
    if not isinstance(settings, dict):
        raise _unreadable(source, ValueError(f"{name} holds a {type(settings).__name__}, expected an object"))
    return settings


def _unreadable(source: str, error: Exception) -> CheckpointUnsupported:
    return CheckpointUnsupported(f"{source}: its tokenizer cannot be loaded: {reason_of(error)}")


def _listed(tokens: list[str]) -> str:
    return ", ".join(map(repr, tokens[:4])) + (f" and {len(tokens) - 4} more" if len(tokens) > 4 else "")
