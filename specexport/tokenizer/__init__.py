"""The tokenizer of a bundle: the checkpoint's own, taken over as it is or built from what a GGUF file states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, text_sha256
from specexport.checkpoints.vocabulary import TOKENIZER_FILE
from specexport.text_lines import read_lines

_FILES = "files"
_NOTES = "notes.txt"


@dataclass(frozen=True)
class TokenizerFiles:
    """`directory` holds tokenizer.json, tokenizer_config.json and, for chat models, chat_template.jinja.

    `directory` is None where the checkpoint has no tokenizer. `notes` are lines for the build to say after the
    checkpoint's name: files of one content are kept once, wherever they lie.
    """

    directory: Path | None
    notes: tuple[str, ...] = ()


def tokenizer_files(key: str, write: Callable[[Path], tuple[str, ...]]) -> TokenizerFiles:
    """Return what `write` puts into a directory, and its notes, kept in the cache: converting a vocabulary takes
    seconds.

    `key` names the checkpoint; a change of this code or of the libraries makes another entry.
    """
    code = code_digest(__name__, write.__module__)
    place = cache_directory() / "tokenizers" / text_sha256(f"{key} {code}")

    def fill(entry: Path) -> None:
        notes = write(entry / _FILES)
        (entry / _NOTES).write_text("\n".join(notes), encoding="utf-8")

    found = cached_entry(place, fill)
    notes = (line for line in read_lines(found / _NOTES) if line)
    has_tokenizer = (found / _FILES / TOKENIZER_FILE).is_file()
    return TokenizerFiles(found / _FILES if has_tokenizer else None, tuple(notes))
