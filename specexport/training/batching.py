"""Stored dialogues as padded batches, in an order that a seed and an epoch decide."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specexport.training.features import FeatureStore, Span
from specexport.training.target import fast_bfloat16

_SORTED_TOGETHER = 24  # batches: enough to pad little, few enough to keep the order random


@dataclass(frozen=True)
class TrainingBatch:
    """Dialogues padded on the right to the longest."""

    ids: Tensor  # [B, T] int64
    final: Tensor  # [B, T, h] the target's normed last hidden state
    taps: Tensor | None  # [B, T, taps * h]
    answer: Tensor  # [B, T] bool: the token here was written by the target as part of its answer
    first_answer: int  # the least column of an answer
    rows: int  # tokens, padding left out


def load_batch(store: FeatureStore, spans: Sequence[Span], *, learn_from: int | None = None) -> TrainingBatch:
    """Gather the rows of `spans`, in the type that the draft computes in.

    `learn_from`: the column from which tokens count as answers, for every dialogue; None: from each answer's start.
    """
    width = max(span.length for span in spans)
    # Autocast takes bfloat16 with float32 weights; without it both sides of a product have one type.
    computed = torch.bfloat16 if fast_bfloat16() else torch.float32
    columns = {}
    for name in ("ids", "final", *(["taps"] if store.setup.layer_ids else [])):
        source = store.rows(name)
        shape = (len(spans), width, *source.shape[1:])
        padded = torch.zeros(shape, dtype=torch.long if name == "ids" else computed)
        for row, span in enumerate(spans):
            padded[row, : span.length] = source[span.start : span.start + span.length]
        columns[name] = padded
    places = torch.arange(width)
    starts = torch.tensor([[learn_from or span.answer_start] for span in spans])
    ends = torch.tensor([[span.length] for span in spans])
    return TrainingBatch(
        ids=columns["ids"],
        final=columns["final"],
        taps=columns.get("taps"),
        answer=(places >= starts) & (places < ends),
        first_answer=int(starts.min()),
        rows=int(ends.sum()),
    )


def plan_epoch(spans: Sequence[Span], tokens: int, seed: int, epoch: int) -> list[list[Span]]:
    """All spans once, in batches of about `tokens` padded rows whose dialogues are of like length."""
    order = random.Random(seed * 1_000_003 + epoch)
    shuffled = list(spans)
    order.shuffle(shuffled)
    batches: list[list[Span]] = []
    for group in _groups(shuffled, tokens * _SORTED_TOGETHER):
        batches += _fill(sorted(group, key=lambda span: (span.length, span.start)), tokens)
    order.shuffle(batches)
    return batches


def _groups(spans: Sequence[Span], rows: int) -> Iterator[list[Span]]:
    group: list[Span] = []
    held = 0
    for span in spans:
        group.append(span)
        held += span.length
        if held >= rows:
            yield group
            group, held = [], 0
    if group:
        yield group


def _fill(spans: Sequence[Span], tokens: int) -> list[list[Span]]:
    batches: list[list[Span]] = []
    for span in spans:
        if batches and (len(batches[-1]) + 1) * span.length <= tokens:
            batches[-1].append(span)
        else:
            batches.append([span])
    return batches
