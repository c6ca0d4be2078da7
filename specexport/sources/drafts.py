"""Where the files of a draft without a language model of its own come from: EAGLE layers and Medusa heads."""

from specexport.errors import SourceError
from specexport.sources.address import HubRepository, LocalDirectory, parse_address
from specexport.sources.hub import DRAFT_FILES, locate_hub
from specexport.sources.local import locate_directory
from specexport.sources.located import Located


def locate_draft(source: str) -> Located:
    """Puts a draft's directory on this machine. Raises `SourceError` when it cannot be had, or is a single file."""
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
