"""What the target computes on the dialogues: kept on disk once, read by every draft kind and every epoch.

Columns, a row per token: `ids` int32, `final` (after the final norm) and, for kinds that need them, `taps` (what
enters the tapped layers, side by side) in bfloat16. `spans.jsonl` says which rows are which dialogue; a line is
written after its rows, so a run that was cut off continues at the last whole batch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from specexport.errors import TrainingRefused
from specexport.training.dialogues import Dialogue

Numbered = tuple[int, Dialogue]
_SPANS = "spans.jsonl"
_SETUP = "setup.json"


@dataclass(frozen=True)
class Span:
    """A dialogue's rows: `start` to `start + length`, the answer from row `start + answer_start`.

    `index` is its place among the dialogues.
    """

    index: int
    start: int
    length: int
    answer_start: int
    greedy: bool
    held_out: bool


@dataclass(frozen=True)
class Setup:
    """What the stored rows depend on; a store of another setup is not mixed with this one."""

    target: str
    """The target's source digest."""
    hidden_size: int
    layer_ids: tuple[int, ...]
    """The tapped layers; () where only the final hidden state is kept."""


def default_layer_ids(layers: int) -> tuple[int, int, int]:
    """The published choice: what enters layers 2, n/2 and n - 3."""
    if layers < 6:
        raise TrainingRefused(
            f"eagle3: found a target of {layers} layers, expected at least 6 to tap three of them; train another kind"
        )
    return (2, layers // 2, layers - 3)


class FeatureStore:
    """Memory-mapped columns of one directory."""

    def __init__(self, directory: Path, setup: Setup) -> None:
        self.setup = setup
        self._directory = directory
        widths = {"ids": 1, "final": setup.hidden_size, "taps": setup.hidden_size * len(setup.layer_ids)}
        self._widths = {name: width for name, width in widths.items() if width}
        directory.mkdir(parents=True, exist_ok=True)
        self._claim()
        self.spans = [Span(**json.loads(line)) for line in _whole_lines(directory / _SPANS)]
        self._cut_to(self.spans[-1].start + self.spans[-1].length if self.spans else 0)

    def append(self, columns: dict[str, NDArray[Any]], spans: Sequence[Span]) -> None:
        """Rows of whole dialogues, `columns` as int32 and bfloat16 bits."""
        for name in self._widths:
            with self._path(name).open("ab") as stream:
                columns[name].tofile(stream)
        with (self._directory / _SPANS).open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(asdict(span)) + "\n" for span in spans)
        self.spans.extend(spans)

    def rows(self, name: str) -> Tensor:
        """A column as a read-only view of the file: [N] int64-able ids, or [N, width] bfloat16."""
        path, width = self._path(name), self._widths[name]
        if name == "ids":
            return torch.from_numpy(np.memmap(path, dtype=np.int32, mode="c"))
        bits = np.memmap(path, dtype=np.int16, mode="c").reshape(-1, width)
        return torch.from_numpy(bits).view(torch.bfloat16)

    def _claim(self) -> None:
        path = self._directory / _SETUP
        stated = json.loads(json.dumps(asdict(self.setup)))
        if not path.is_file():
            path.write_text(json.dumps(stated))
        elif (found := json.loads(path.read_text())) != stated:
            raise TrainingRefused(
                f"{self._directory}: holds features of {found}, expected {stated}; choose another --work directory"
            )

    def _cut_to(self, rows: int) -> None:
        for name, width in self._widths.items():
            size = rows * width * (4 if name == "ids" else 2)
            path = self._path(name)
            path.touch()
            if path.stat().st_size < size:
                raise TrainingRefused(f"{path}: shorter than {_SPANS} says; delete {self._directory}")
            with path.open("r+b") as stream:
                stream.truncate(size)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.bin"


def add_features(
    store: FeatureStore,
    model: PreTrainedModel,
    dialogues: Iterable[Dialogue],
    *,
    tokens_per_batch: int = 4096,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """Runs the target, in the precision it is in, on the dialogues that the store lacks (it holds the first ones).

    Padding is on the right, where causal attention keeps it out of every real row.
    """
    there = {span.index for span in store.spans}
    missing = [item for item in enumerate(dialogues) if item[0] not in there]
    with torch.inference_mode():
        for group in _windows(missing, 512):
            for batch in _by_length(group, tokens_per_batch):
                _add_batch(store, model, batch)
                progress(store.spans[-1].start + store.spans[-1].length)


def _add_batch(store: FeatureStore, model: PreTrainedModel, numbered: Sequence[Numbered]) -> None:
    batch = [dialogue for _, dialogue in numbered]
    width = max(len(dialogue.ids) for dialogue in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    for row, dialogue in enumerate(batch):
        ids[row, : len(dialogue.ids)] = torch.tensor(dialogue.ids)
    states = _decoder(model)(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    real = torch.arange(width) < torch.tensor([[len(dialogue.ids)] for dialogue in batch])
    taps = [states[layer] for layer in store.setup.layer_ids]
    columns = {"ids": ids[real].to(torch.int32).numpy(), "final": _bits(states[-1][real])}
    if taps:
        columns["taps"] = _bits(torch.cat(taps, dim=-1)[real])
    start = store.spans[-1].start + store.spans[-1].length if store.spans else 0
    spans = []
    for index, dialogue in numbered:
        length = len(dialogue.ids)
        spans.append(Span(index, start, length, len(dialogue.prompt_ids), dialogue.greedy, dialogue.held_out))
        start += length
    store.append(columns, spans)


def _decoder(model: PreTrainedModel) -> nn.Module:
    """The model without its LM head, whose last hidden state is the normed one."""
    return model.get_decoder()  # type: ignore[no-any-return]


def _bits(values: Tensor) -> NDArray[np.int16]:
    return values.to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def _windows(dialogues: Sequence[Numbered], size: int) -> Iterator[Sequence[Numbered]]:
    return (dialogues[first : first + size] for first in range(0, len(dialogues), size))


def _by_length(dialogues: Sequence[Numbered], tokens: int) -> Iterator[list[Numbered]]:
    batch: list[Numbered] = []
    for numbered in sorted(dialogues, key=lambda numbered: len(numbered[1].ids)):
        if batch and (len(batch) + 1) * len(numbered[1].ids) > tokens:
            yield batch
            batch = []
        batch.append(numbered)
    if batch:
        yield batch


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return whole.decode().splitlines()
