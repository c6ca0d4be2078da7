"""Reads the lines of files that hold a text a line, JSON or not. Imports the standard library only."""

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a UTF-8 file, without their ends: "\n" or "\r\n", and no other character.

    JSON may hold U+2028, U+2029 and U+0085 within a text, at which `str.splitlines` would cut it. A byte order mark at
    the file's start is not part of its first line.

    Raises `ValueError` with the reason, "it is not UTF-8 text" among them, for a file that cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    return [line.removesuffix("\r") for line in text.split("\n")]
