"""What the target computes on the dialogues: kept on disk once, read by every draft kind and every epoch.

Columns, a row per token: `ids` int32, `final` (after the final norm) and, for kinds that need them, `taps` (what
enters the tapped layers, side by side) in bfloat16. `spans.jsonl` says which rows are which dialogue; a line is
written after its rows, so a run that was cut off continues at the last whole batch.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from specexport.errors import TrainingRefused
from specexport.export.support import find_residual_stream
from specexport.training.answers import Dialogue

_SPANS = "spans.jsonl"
_SETUP = "setup.json"


@dataclass(frozen=True)
class Span:
    """A dialogue's rows: `start` to `start + length`, the answer from row `start + answer_start`."""

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


def stored_setup(directory: Path) -> Setup | None:
    """Return the setup of the store in `directory`; None if it has no setup file."""
    path = directory / _SETUP
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
        return Setup(found["target"], found["hidden_size"], tuple(found["layer_ids"]))
    except (ValueError, KeyError, TypeError):
        raise TrainingRefused(f"{path}: does not say what the features are of; delete {directory}") from None


class FeatureStore:
    """Memory-mapped columns of one directory."""

    def __init__(self, directory: Path, setup: Setup) -> None:
        self.setup = setup
        self._directory = directory
        widths = {"ids": 1, "final": setup.hidden_size, "taps": setup.hidden_size * len(setup.layer_ids)}
        self._widths = {name: width for name, width in widths.items() if width}
        directory.mkdir(parents=True, exist_ok=True)
        self._claim()
        self.spans = [_read_span(line) for line in _whole_lines(directory / _SPANS)]
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
        """Return a column as a read-only view of the file: [N] int64-able ids, or [N, width] bfloat16."""
        path, width = self._path(name), self._widths[name]
        if name == "ids":
            return torch.from_numpy(np.memmap(path, dtype=np.int32, mode="c"))
        bits = np.memmap(path, dtype=np.int16, mode="c").reshape(-1, width)
        return torch.from_numpy(bits).view(torch.bfloat16)

    def find(self, dialogues: Sequence[Dialogue]) -> list[Span | None]:
        """Return the rows of each dialogue, by its ids; None where they are not there."""
        ids = self.rows("ids").numpy() if self.spans else np.empty(0, np.int32)
        known = {
            (span.answer_start, ids[span.start : span.start + span.length].tobytes()): span
            for span in self.spans
        }
        return [known.get((len(d.prompt_ids), np.array(d.ids, np.int32).tobytes())) for d in dialogues]

    def _claim(self) -> None:
        found = stored_setup(self._directory)
        if found is None:
            (self._directory / _SETUP).write_text(json.dumps(asdict(self.setup)))
        elif found != self.setup:
            raise TrainingRefused(
                f"{self._directory}: holds features of {asdict(found)}, expected {asdict(self.setup)}; choose another "
                "--work directory"
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
    dialogues: Sequence[Dialogue],
    *,
    tokens_per_batch: int = 4096,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[Span]:
    """Run the target, in the precision it is in, on the dialogues that the store lacks; -> the rows of each dialogue.

    The store may hold others as well, of earlier prompts.
    Padding is on the right, where causal attention keeps it out of every real row.
    """
    missing = [d for d, span in zip(dialogues, store.find(dialogues), strict=True) if span is None]
    last = _last_layer(model) if model.config.num_hidden_layers in store.setup.layer_ids else None
    with torch.inference_mode():
        for group in _windows(missing, 512):
            for batch in _by_length(group, tokens_per_batch):
                _add_batch(store, model, batch, last)
                progress(store.spans[-1].start + store.spans[-1].length)
    return [span for span in store.find(dialogues) if span is not None]


def _last_layer(model: PreTrainedModel) -> nn.Module:
    """Return the layer whose output no layer takes: transformers' own last hidden state is behind the final norm."""
    stream = find_residual_stream(model)
    if isinstance(stream, str):
        raise TrainingRefused(f"found a draft that reads what leaves the target's last layer, and {stream}")
    return stream.layers[-1]


def _add_batch(
    store: FeatureStore, model: PreTrainedModel, batch: Sequence[Dialogue], last: nn.Module | None
) -> None:
    width = max(len(dialogue.ids) for dialogue in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    for row, dialogue in enumerate(batch):
        ids[row, : len(dialogue.ids)] = torch.tensor(dialogue.ids)
    left: list[Tensor] = []
    hook = (
        last.register_forward_hook(lambda *call: left.append(_first(call[2]))) if last is not None else None
    )
    try:
        states = _decoder(model)(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    finally:
        if hook is not None:
            hook.remove()
    real = torch.arange(width) < torch.tensor([[len(dialogue.ids)] for dialogue in batch])
    entering = [*states[:-1], *left]
    taps = [entering[layer] for layer in store.setup.layer_ids]
    columns = {"ids": ids[real].to(torch.int32).numpy(), "final": _bits(states[-1][real])}
    if taps:
        columns["taps"] = _bits(torch.cat(taps, dim=-1)[real])
    start = store.spans[-1].start + store.spans[-1].length if store.spans else 0
    spans = []
    for dialogue in batch:
        length = len(dialogue.ids)
        spans.append(Span(start, length, len(dialogue.prompt_ids), dialogue.greedy, dialogue.held_out))
        start += length
    store.append(columns, spans)


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _decoder(model: PreTrainedModel) -> nn.Module:
    """Return the model without its LM head, whose last hidden state is the normed one."""
    return model.get_decoder()  # type: ignore[no-any-return]


def _bits(values: Tensor) -> NDArray[np.int16]:
    return values.to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def _windows(dialogues: Sequence[Dialogue], size: int) -> Iterator[Sequence[Dialogue]]:
    return (dialogues[first : first + size] for first in range(0, len(dialogues), size))


def _by_length(dialogues: Sequence[Dialogue], tokens: int) -> Iterator[list[Dialogue]]:
    batch: list[Dialogue] = []
    for dialogue in sorted(dialogues, key=lambda dialogue: len(dialogue.ids)):
        if batch and (len(batch) + 1) * len(dialogue.ids) > tokens:
            yield batch
            batch = []
        batch.append(dialogue)
    if batch:
        yield batch


def _read_span(line: str) -> Span:
    record = json.loads(line)
    return Span(**{field.name: record[field.name] for field in fields(Span)})


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return whole.decode().splitlines()
