"""Where checkpoints come from: local files, the hub, a wheel on PyPI, or a seed."""

from specexport.sources.address import Address, HubRepository, LocalDirectory, LocalGguf, WheelMember
from specexport.sources.hub import OUTLINE_FILES, locate_hub
from specexport.sources.local import locate_directory, locate_gguf
from specexport.sources.located import Located
from specexport.sources.wheel import locate_wheel_member


def locate(address: Address, sha256: str | None = None) -> Located:
    """Puts the files of an address on this machine. `sha256`: what a single file must hash to.

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
