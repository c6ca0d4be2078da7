"""What a library raised is passed on in one line that ends where a sentence or a word does."""

import pytest

from specexport.errors import reason_of, shorten_reason


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("short", "short"),
        (" two\n lines ", "two lines"),
        ("One sentence. " + "word " * 80, "One sentence."),
        ("word " * 80, "word " * 59 + "word ..."),
        ("x" * 400, "x" * 300 + " ..."),
    ],
)
def test_a_long_reason_is_not_cut_in_the_middle(words: str, shown: str) -> None:
    assert shorten_reason(words) == shown


def test_a_reason_without_words_is_its_kind() -> None:
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(ValueError("no\nroom")) == "no room"
