"""Addresses of checkpoints parse to exactly what they say, or are refused naming the form."""

from pathlib import Path

import pytest

from specexport.checkpoints.address import (
    Address,
    HubRepository,
    LocalDirectory,
    LocalGguf,
    WheelMember,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("./model", LocalDirectory(Path("/base/model"))),
        ("../model", LocalDirectory(Path("/model"))),
        ("/models/a", LocalDirectory(Path("/models/a"))),
        ("./a.gguf", LocalGguf(Path("/base/a.gguf"))),
        ("a.gguf", LocalGguf(Path("/base/a.gguf"))),
        ("hub://org/name@main", HubRepository("org/name", "main")),
        ("hub://org/na-me.1@refs/pr/1", HubRepository("org/na-me.1", "refs/pr/1")),
        ("pypi://llm-x==0.1.2/llm_x/a.gguf", WheelMember("llm-x", "0.1.2", "llm_x/a.gguf")),
    ],
)
def test_an_address_parses_and_prints_back(text: str, expected: Address) -> None:
    parsed = parse_address(text, Path("/base"))
    assert parsed == expected
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model", r"write \./model"),
        ("hub://org/name", "without a revision, expected hub://organisation/name@revision"),
        ("hub://name@main", "expected hub://organisation/name@revision"),
        ("pypi://a/b.gguf", "expected pypi://distribution==version/path"),
        ("pypi://a==1/../b.gguf", "expected a path inside the wheel"),
        ("pypi://a==1/b.bin", r"expected a \.gguf file"),
        ("s3://a/b", r"expected \./directory, \./file.gguf, hub://"),
    ],
)
def test_what_is_no_address_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_address(text)
