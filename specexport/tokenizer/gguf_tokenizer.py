"""Builds the tokenizer that a GGUF file states, in tokenizers' own parts, as llama.cpp reads the file.

What llama.cpp splits by code of its own, or what cannot be proven equal to it, is refused by name.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, processors

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.files import save_tokenizer
from specexport.tokenizer.gguf_byte_pairs import byte_pair_tokenizer
from specexport.tokenizer.gguf_vocabulary import (
    BuiltTokenizer,
    GgufVocabulary,
    TokenType,
    read_vocabulary,
)
from specexport.tokenizer.sentence_piece import score_pair_tokenizer, unigram_tokenizer

_BUILDERS: dict[str, Callable[[GgufVocabulary], BuiltTokenizer]] = {
    "gpt2": byte_pair_tokenizer,
    "llama": score_pair_tokenizer,
    "t5": unigram_tokenizer,
}


def write_gguf_tokenizer(source: str, path: Path, destination: Path) -> tuple[str, ...]:
    """Write the tokenizer of the GGUF file at `path` to the directory `destination`; nothing where it has none.

    Returns what the build should say of it. Raises `CheckpointUnsupported` naming what it cannot carry out.
    """
    vocabulary = read_vocabulary(source, path)
    if vocabulary is None:
        return ()
    build = _BUILDERS.get(vocabulary.model)
    if build is None:
        raise CheckpointUnsupported(
            f"{source}: its tokenizer.ggml.model is {vocabulary.model!r}, expected one of {', '.join(_BUILDERS)}; "
            "use the checkpoint's Hugging Face directory"
        )
    built = build(vocabulary)
    _add_tokens(built.tokenizer, vocabulary)
    _add_ends(built, vocabulary)
    save_tokenizer(
        built.tokenizer,
        destination,
        bos_token=vocabulary.text_of(vocabulary.bos),
        eos_token=vocabulary.text_of(vocabulary.eos),
        unk_token=vocabulary.text_of(vocabulary.unknown),
        pad_token=vocabulary.text_of(vocabulary.padding),
        chat_template=vocabulary.chat_template,
    )
    return built.notes


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Tokens that are found in the text before it is split: control and unknown ones, and those users defined."""
    # llama.cpp's correction for Phi-3, whose files do not say that its tokens swallow the spaces after them
    is_phi3 = any(name in vocabulary.name.lower() for name in ("phi-3", "phi3"))
    keeps_spaces = {"<unk>", "<s>", "<|endoftext|>"}
    special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True, rstrip=is_phi3 and token not in keeps_spaces)
            for token in special
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False, rstrip=is_phi3)
            for token in vocabulary.of_type(TokenType.USER_DEFINED)
        ]
    )


def _add_ends(built: BuiltTokenizer, vocabulary: GgufVocabulary) -> None:
    """Set the tokens before and after a text, as the flags say or llama.cpp assumes."""
    before = _end(vocabulary, "bos", vocabulary.add_bos, built.add_bos, vocabulary.bos)
    after = _end(vocabulary, "eos", vocabulary.add_eos, built.add_eos, vocabulary.eos)
    ends = [end for end in (before, after) if end is not None]
    if ends:
        built.tokenizer.post_processor = processors.TemplateProcessing(
            single=[*([before[0]] if before else []), "$A", *([after[0]] if after else [])],
            special_tokens=list(dict.fromkeys(ends)),
        )


def _end(
    vocabulary: GgufVocabulary, name: str, flag: bool | None, assumed: bool, index: int | None
) -> tuple[str, int] | None:
    if not (assumed if flag is None else flag):
        return None
    token = vocabulary.text_of(index)
    if token is None or index is None:
        raise CheckpointUnsupported(
            f"{vocabulary.source}: a {name} token is added to each text, but tokenizer.ggml.{name}_token_id is not "
            "there; convert the checkpoint to GGUF again"
        )
    return token, index
