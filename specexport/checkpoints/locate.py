"""Where checkpoints come from: local files, the hub, a wheel on PyPI, or a seed."""

from specexport.checkpoints.address import (
    Address,
    HubRepository,
    LocalDirectory,
    LocalGguf,
    WheelMember,
    parse_address,
)
from specexport.checkpoints.hub import DRAFT_FILES, OUTLINE_FILES, locate_hub
from specexport.checkpoints.local import Located, locate_directory, locate_gguf
from specexport.checkpoints.wheel import locate_wheel_member
from specexport.errors import SourceError


def locate(address: Address, sha256: str | None = None) -> Located:
    """Put the files of an address on this machine. `sha256`: what a single file must hash to.

    Raises `SourceError` when they cannot be had or differ.
    """
    match address:
        case LocalDirectory():
            return locate_directory(address)
        case LocalGguf():
            return locate_gguf(address, sha256)
        case HubRepository():
            return locate_hub(address)
        case WheelMember():
            return locate_wheel_member(address, sha256)


def locate_outline(address: Address, sha256: str | None = None) -> Located:
    """As `locate`, but of a directory or a repository its small files only: no weights are fetched, none are hashed.

    The digest is not that of `locate`: it does not change with the weights.
    """
    match address:
        case LocalDirectory():
            return locate_directory(address, weights=False)
        case HubRepository():
            return locate_hub(address, OUTLINE_FILES)
        case _:
            return locate(address, sha256)


def locate_draft(source: str) -> Located:
    """Put a draft's directory on this machine. Raises `SourceError` when it cannot be had, or be a single file."""
    address = parse_address(source)
    match address:
        case LocalDirectory():
            return locate_directory(address)
        case HubRepository():
            return locate_hub(address, DRAFT_FILES)
    raise SourceError(
        f"{source}: found a single file, expected ./directory or hub://organisation/name@revision with the draft's "
        "config.json and weights"
    )
