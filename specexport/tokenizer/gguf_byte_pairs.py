"""Byte-level vocabularies of GGUF files (`tokenizer.ggml.model: gpt2`): merges in order, text cut by a named rule."""

from tokenizers import Tokenizer, decoders, models

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.gguf_rules import REFUSED_RULES, SPLIT_RULES, SplitRule, pre_tokenizer
from specexport.tokenizer.gguf_vocabulary import BuiltTokenizer, GgufVocabulary
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
