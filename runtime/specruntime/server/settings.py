"""Holds the limits and names of a server, and reads files of API keys."""

import hmac
from dataclasses import dataclass
from pathlib import Path

from specruntime.errors import InvalidArgument


@dataclass(frozen=True)
class Settings:
    """Limits and names of one server; each has the meaning that its command-line option documents."""

    model_name: str
    api_keys: tuple[str, ...] = ()  # any of them opens /v1; none: it is open
    max_body_bytes: int = 2**20
    max_prompt_tokens: int | None = None  # None: the bundle's capacity
    request_seconds: float = 600.0  # from the request to the last token
    read_seconds: float = 20.0  # for a client to send the head of a request, and again for its body
    write_seconds: float = 30.0  # for a client to take what was sent
    keep_alive_seconds: float = 5.0  # of a connection between two requests

    def admits(self, key: str) -> bool:
        """Whether the key opens the server; takes the same time for every wrong one."""
        matches = [hmac.compare_digest(key.encode(), known.encode()) for known in self.api_keys]
        return not self.api_keys or any(matches)


def read_api_keys(file: Path) -> tuple[str, ...]:
    """Read the keys of a file, one per line; empty lines and lines that begin with # do not count.

    Raises `InvalidArgument` for a file that cannot be read, is not ASCII text or has no key.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="ascii").splitlines()]
    except OSError as error:
        raise InvalidArgument(
            f"{file} cannot be read: {error.strerror}; expected API keys, one per line"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} holds what is not ASCII, expected one key a line") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InvalidArgument(f"{file} holds no key, expected one per line")
    return keys
