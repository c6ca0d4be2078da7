"""Texts of every kind on which two tokenizers are held to each other, to the token, and runs of ids to be decoded."""

from collections.abc import Callable, Iterable, Sequence

from tokenizers import AddedToken, Tokenizer

PROBE_TEXTS: tuple[str, ...] = (
    "The quick brown fox jumps over the lazy dog.",
    "x =  12",
    "1234567890 3.14159 1,000,000 2024-12-31 0x1F 10km",
    "\n\n1. first\n2.  second\n\n\n10. tenth\n",
    " one  two   three    four     five      six ",
    "        eight and\t\ttabs \t mixed \n  lines\r\n\r\n  end   ",
    "def f(x):\n    if x > 12:\n        return [x ** 2 for _ in range(3)]\n\treturn {'a': x}  # done\n",
    "don't WE'LL I'm they'd you've it's 'S",
    'Hello, World! (What?) -- "quoted" [1] {2} <3> &amp; a/b\\c|d~e`f^g@h#i$j%k*l_m+n=o;p:q',
    "naïve café déjà vu Straße ŒUVRE ΑΒΓ αβγ Привет мир",
    "cafe\u0301 e\u0301\u0301 n\u0303 A\u030a",
    "中文，和标点。日本語のテキスト、カタカナー。한국어 텍스트입니다 ２０２４年",
    "مرحبا بالعالم שלום हिन्दी में पाठ ภาษาไทย",
    "😀👍🏽🇺🇸❤️👩‍👩‍👧 ok 🙂",
    "no\u00a0break en\u2002space ideographic\u3000zero\u200bwidth \ufeffmark",
    "² ½ Ⅷ ① ٣٤٥ ५६",
    "HTTPServer camelCase snake_case SCREAMING_CASE iPhone15Pro ",
    "\u2581already\u2581marked \u2581",
    "<0x41> <unused> </s> <|im_start|> [INST] <s>",
    "\u0000\u0001\u007f\u0085\u2028\u2029\ufffd\U0010ffff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  ================",
)
_ADDED = 64  # added tokens whose surroundings are probed; more are reserves of one kind
_RUN = 12
_RUNS = 400


def with_added_tokens(added: Iterable[AddedToken]) -> list[str]:
    """Texts with an added token at the start, at the end, between words, between spaces and twice in a row."""
    contents = [token.content for token in added][:_ADDED]
    return [
        text.replace("*", token)
        for token in contents
        for text in ("*the a", "a* the\n", "a  *  12", "**\n\nb")
    ]


def first_difference(
    left: Callable[[str], Sequence[int]], right: Callable[[str], Sequence[int]], texts: Iterable[str]
) -> str | None:
    """Return what the two make of the first text that they split apart, in words; None where they agree on all."""
    for text in texts:
        found, expected = list(left(text)), list(right(text))
        if found != expected:
            return f"{text!r} becomes {_shown(found)}, expected {_shown(expected)}"
    return None


def first_decoding_difference(left: Tokenizer, right: Tokenizer) -> str | None:
    """As `first_difference`, for the text of runs of ids, among them bytes that form no character."""
    size = right.get_vocab_size(with_added_tokens=True)
    step = max(1, size // _RUNS)
    for start in range(0, size, step):
        ids = [(start + offset * (1 + start % 7)) % size for offset in range(_RUN)]
        for skip in (True, False):
            found, expected = (side.decode(ids, skip_special_tokens=skip) for side in (left, right))
            if found != expected:
                return f"the ids {_shown(ids)} read {found!r}, expected {expected!r}"
    return None


def _shown(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:16]))}{', ...' if len(ids) > 16 else ''}]"
