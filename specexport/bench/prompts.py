"""The prompts file: one JSON object a line, `{"id", "prompt", "category"}`; the category may be left out."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specexport.text_lines import read_lines
from specruntime.bundle import load_manifest
from specruntime.errors import CapacityExceeded, InvalidArgument
from specruntime.manifest.messages import one_of
from specruntime.manifest.schema import Manifest
from specruntime.text.codec import TextCodec

_KEYS = {"id", "prompt", "category"}


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    id: str
    prompt: str
    category: str = "all"


def load_prompts(path: Path) -> tuple[BenchPrompt, ...]:
    """Raise `InvalidArgument` naming the file, the line and what was expected."""
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise InvalidArgument(
            f"the prompts file {path} cannot be read: {error}; give another --prompts"
        ) from error
    prompts = tuple(_parse(path, lines))
    if not prompts:
        raise InvalidArgument(
            f"{path} holds no prompts, expected a JSON object with `id` and `prompt` on each line"
        )
    return prompts


def _parse(path: Path, lines: Sequence[str]) -> Iterator[BenchPrompt]:
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = _parse_line(f"{path}, line {number}", line)
        if prompt.id in seen:
            raise InvalidArgument(
                f"{path}, line {number}: the id {prompt.id!r} is there twice; give each prompt its own"
            )
        seen.add(prompt.id)
        yield prompt


def _parse_line(place: str, line: str) -> BenchPrompt:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(
            f'{place} is not JSON ({error}), expected an object such as {{"id": "a", "prompt": "Hello"}}'
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"{place} is a {type(found).__name__}, expected an object with `id` and `prompt`"
        )
    if unknown := sorted(found.keys() - _KEYS):
        raise InvalidArgument(f"{place}: unknown key {unknown[0]!r}, {one_of(unknown[0], sorted(_KEYS))}")
    for key in ("id", "prompt"):
        if not isinstance(found.get(key), str) or not found[key].strip():
            raise InvalidArgument(
                f"{place}: `{key}` is {found.get(key)!r}, expected a text that is not empty"
            )
    if not isinstance(found.get("category", ""), str):
        raise InvalidArgument(f"{place}: `category` is {found['category']!r}, expected a text")
    return BenchPrompt(**found)


class Reader(Protocol):
    """What reads prompts: an open bundle, or one whose engines are not."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def tokenizer(self) -> TextCodec | None: ...


@dataclass(frozen=True, slots=True)
class BundleText:
    """A bundle's manifest and tokenizer without its engines, to refuse prompts before anything is measured."""

    manifest: Manifest
    tokenizer: TextCodec | None

    @classmethod
    def of(cls, root: Path) -> "BundleText":
        """Return the bundle's text side. Raises as `load_manifest` and `TextCodec.open`."""
        manifest = load_manifest(root, verify=False)
        stated = manifest.tokenizer
        return cls(manifest, None if stated is None else TextCodec.open(root, stated))


def encode_prompts(
    bundle: Reader, prompts: Sequence[BenchPrompt], max_new_tokens: int
) -> dict[str, list[int]]:
    """Token ids by prompt id, in the bundle's chat template where it has one.

    Raises `InvalidArgument` for a bundle without tokenizer, `CapacityExceeded` for a prompt whose answer does not fit.
    """
    codec = bundle.tokenizer
    if codec is None:
        raise InvalidArgument(f"{bundle.manifest.name} has no tokenizer, so it cannot read prompts")
    encoded = {}
    for prompt in prompts:
        ids = (
            codec.chat([{"role": "user", "content": prompt.prompt}])
            if codec.has_chat_template
            else codec.encode(prompt.prompt)
        )
        capacity = bundle.manifest.target.capacity
        if len(ids) + max_new_tokens > capacity:
            raise CapacityExceeded(
                f"prompt {prompt.id} has {len(ids)} tokens, with {max_new_tokens} new ones more than the capacity "
                f"{capacity}: lower --max-new-tokens, or raise `capacity` in the recipe and build again"
            )
        encoded[prompt.id] = ids
    return encoded
