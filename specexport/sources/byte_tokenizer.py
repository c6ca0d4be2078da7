"""A tokenizer for models of random weights: one token per UTF-8 byte and three special tokens.

0-255  the bytes          256  <|end|> (end of turn)          257  <|user|>          258  <|assistant|>
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BYTE_TOKENS = 256
SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>")
END_TOKEN_ID = BYTE_TOKENS
TOKENIZER_SIZE = BYTE_TOKENS + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; the same files on every machine."""
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
    """Writes tokenizer.json, tokenizer_config.json and the chat template; nothing is to be said of them."""
    byte_tokenizer().save_pretrained(directory)
    return ()


def _byte_character(byte: int) -> str:
    """GPT-2's printable stand-in for a byte: itself where printable, else the next free character from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(1 for other in range(byte) if other not in printable))
