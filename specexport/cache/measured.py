"""Measurements of a build, kept in the cache under a key of all that decides them, the processor included."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specexport.cache.entries import cache_directory, cached_entry, read_record, text_sha256, write_record
from specruntime.engines.prepacked import architecture, processor_features

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def measured_once(
    kind: str, parts: Mapping[str, object], measure: Callable[[], "DataclassInstance"], *, force: bool
) -> dict[str, Any]:
    """Return the fields of what `measure` finds; it is called where the cache holds nothing under `parts`, or
    `force`.
    """
    # Kernels, and what they round, are chosen by it.
    processor = [architecture(), *(processor_features() or ())]
    key = text_sha256(json.dumps({**parts, "processor": processor}, sort_keys=True))
    place = cache_directory() / kind / key
    cached_entry(place, lambda directory: write_record(directory, asdict(measure())), force=force)
    return read_record(place)
