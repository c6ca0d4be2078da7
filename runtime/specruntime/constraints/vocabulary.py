"""The tokenizer of a bundle as llguidance takes it."""

import json
from collections.abc import Sequence
from typing import Any

from specruntime.constraints.grammars import library
from specruntime.errors import ConstraintInvalid
from specruntime.text.codec import TextCodec


def library_tokenizer(codec: TextCodec, vocab: int, eos_token_ids: Sequence[int]) -> Any:
    """Return the library's tokenizer for a model of `vocab` tokens, some of which the tokenizer may not have.

    The library reads from the file which bytes a token stands for, and how a forced text is tokenized. It can where
    tokens stand for bytes whatever they follow: byte-level tokenizers, and those that fall back to bytes. Raises
    `ConstraintInvalid` for any other.
    """
    if not codec.writes_bytes:
        raise ConstraintInvalid(
            "this bundle's tokenizer cannot be used for structured_outputs, expected a byte-level tokenizer or one "
            "that falls back to bytes"
        )
    ends = [token for token in eos_token_ids if token < vocab] or None
    document = json.loads(codec.to_json())
    document["truncation"] = document["padding"] = None
    try:
        return library().LLTokenizer(json.dumps(document), n_vocab=max(vocab, codec.size), eos_token=ends)
    except ValueError as error:
        raise ConstraintInvalid(
            f"this bundle's tokenizer cannot be used for structured_outputs: {error}"
        ) from error
