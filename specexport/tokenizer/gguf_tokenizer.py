"""Builds the tokenizer that a GGUF file states, in tokenizers' own parts, as llama.cpp reads the file.

What llama.cpp splits by code of its own, or what cannot be proven equal to it, is refused by name.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.files import save_tokenizer
from specexport.tokenizer.gguf_rules import REFUSED_RULES, SPLIT_RULES, SplitRule, pre_tokenizer
from specexport.tokenizer.gguf_vocabulary import (
    BuiltTokenizer,
    GgufVocabulary,
    TokenType,
    read_vocabulary,
)
from specexport.tokenizer.sentence_piece import score_pair_tokenizer, unigram_tokenizer
from specruntime.manifest.messages import nearest


def byte_pair_tokenizer(vocabulary: GgufVocabulary) -> BuiltTokenizer:
    """Raise `CheckpointUnsupported` for a rule or merges that cannot be carried out."""
    source, merges = vocabulary.source, vocabulary.merges
    rule, notes = _rule(vocabulary)
    if merges is None:
        raise CheckpointUnsupported(
            f"{source}: a gpt2 vocabulary without tokenizer.ggml.merges, expected the merges in order; convert the "
            "checkpoint to GGUF again"
        )
    if vocabulary.charsmap:
        raise CheckpointUnsupported(
            f"{source}: a gpt2 vocabulary with a tokenizer.ggml.precompiled_charsmap, which llama.cpp does not apply "
            "to one; use the checkpoint's Hugging Face directory"
        )
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    for first, second in merges:
        for token in (first, second, first + second):
            if token not in ids:
                raise CheckpointUnsupported(
                    f"{source}: tokenizer.ggml.merges joins {first!r} and {second!r}, but {token!r} is not among its "
                    "tokens; convert the checkpoint to GGUF again"
                )
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(merges), ignore_merges=rule.ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return BuiltTokenizer(tokenizer, add_bos=rule.add_bos, notes=notes)


def _rule(vocabulary: GgufVocabulary) -> tuple[SplitRule, tuple[str, ...]]:
    source, name = vocabulary.source, vocabulary.pre
    if name is None:
        return SPLIT_RULES["default"], (
            "it names no splitting rule (tokenizer.ggml.pre): split by llama.cpp's default, which may differ "
            "from what the model was trained on",
        )
    if (reason := REFUSED_RULES.get(name)) is not None:
        raise CheckpointUnsupported(
            f"{source}: tokenizer.ggml.pre is {name}, which is not carried out: {reason}; use the checkpoint's "
            "Hugging Face directory"
        )
    if name not in SPLIT_RULES:
        raise CheckpointUnsupported(
            f"{source}: tokenizer.ggml.pre is {name!r}, which is not a splitting rule known here"
            f"{nearest(name, SPLIT_RULES)}; use the checkpoint's Hugging Face directory"
        )
    if name == "default":
        return SPLIT_RULES[name], (
            "it is split by llama.cpp's default rule (tokenizer.ggml.pre: default), which may differ from what "
            "the model was trained on",
        )
    return SPLIT_RULES[name], ()


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
