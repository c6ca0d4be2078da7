"""Checkpoint addresses: the strings a recipe may give as `source`, parsed.

    ./dir  or /dir                          a local Hugging Face directory
    ./file.gguf                             a local GGUF file
    hub://org/name@revision                 a repository on the Hugging Face hub
    pypi://distribution==version/member     one file inside a wheel

Pure text: nothing here touches the disk or the network.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

FORMS = "./directory, ./file.gguf, hub://organisation/name@revision or pypi://distribution==version/path/in/wheel.gguf"
_HUB = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)")
_WHEEL = re.compile(r"(?P<distribution>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.+!-]+)/(?P<member>[^\\]+)")


@dataclass(frozen=True)
class LocalDirectory:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class LocalGguf:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class HubRepository:
    repository: str
    revision: str

    def __str__(self) -> str:
        return f"hub://{self.repository}@{self.revision}"


@dataclass(frozen=True)
class WheelMember:
    distribution: str
    version: str
    member: str

    def __str__(self) -> str:
        return f"pypi://{self.distribution}=={self.version}/{self.member}"


Address = LocalDirectory | LocalGguf | HubRepository | WheelMember


def parse_address(text: str, directory: Path | None = None) -> Address:
    """Parse a source; local paths are taken relative to `directory` (the recipe's) when it is given.

    Raises ValueError naming the form that was expected.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _parse_path(text, directory)
    if scheme == "hub":
        return _parse_hub(text, rest)
    if scheme == "pypi":
        return _parse_wheel(text, rest)
    raise ValueError(f"found {text!r}, expected {FORMS}")


def _parse_path(text: str, directory: Path | None) -> Address:
    explicit = text.startswith(("/", "./", "../", "~"))
    if not explicit and not text.endswith(".gguf"):
        raise ValueError(
            f"found {text!r}, expected {FORMS}; write ./{text} for a directory next to the recipe"
        )
    path = Path(text).expanduser()
    if directory is not None:
        path = Path(os.path.normpath(directory.absolute() / path))
    return LocalGguf(path) if path.suffix == ".gguf" else LocalDirectory(path)


def _parse_hub(text: str, rest: str) -> Address:
    match = _HUB.fullmatch(rest)
    if match:
        return HubRepository(match["repository"], match["revision"])
    if "@" not in rest:
        raise ValueError(f"found {text!r} without a revision, expected hub://organisation/name@revision")
    raise ValueError(f"found {text!r}, expected hub://organisation/name@revision")


def _parse_wheel(text: str, rest: str) -> Address:
    match = _WHEEL.fullmatch(rest)
    if match is None:
        raise ValueError(f"found {text!r}, expected pypi://distribution==version/path/in/wheel.gguf")
    if ".." in match["member"].split("/") or match["member"].startswith("/"):
        raise ValueError(f"found {match['member']!r} as the wheel's member, expected a path inside the wheel")
    if not match["member"].endswith(".gguf"):
        raise ValueError(f"found {match['member']!r} as the wheel's member, expected a .gguf file")
    return WheelMember(match["distribution"], match["version"], match["member"])
