"""Which waiting windows run together: pure, so that every case can be tried.

A launch holds neighbouring sequences, at one profile. A narrower window may ride in a wider profile, padded; whether
that beats a launch of its own is a matter of cost, counted in launches of one row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specruntime.engines.windows import ROW_COST
from specruntime.manifest.schema import GraphSpec, Profile


@dataclass(frozen=True, slots=True)
class Waiting:
    """One sequence that waits for a window: it writes from cache row `start` on."""

    row: int
    profile: Profile
    start: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Sequences first .. first + size - 1 at `profile`; of them those in `rows` asked for it."""

    profile: Profile
    first: int
    size: int
    rows: tuple[int, ...]


def cost(size: int, width: int) -> float:
    """Return the cost of a launch, in launches of one row."""
    return 1 + ROW_COST * size * width


def rows_written(spec: GraphSpec, width: int) -> int:
    """Cache rows that a window of `width` tokens writes; a fused draft adds those of all its tokens but the last."""
    return width + spec.drafted - 1


def plan(spec: GraphSpec, total: int, waiting: Sequence[Waiting], ends: Mapping[int, int]) -> list[Launch]:
    """Return the cheapest launches found that serve every waiting window once; `total` sequences have caches.

    `ends` gives, for each sequence whose cache holds anything, the row from which on it is stale: a launch that
    includes one that did not ask writes there, so it must have that much room.
    """
    launches: list[Launch] = []
    for family in _families(spec, waiting):
        known = {window.profile.name: window.profile for window in family}
        profiles = sorted(known.values(), key=lambda p: (p.width, p.rows, len(p.outputs or spec.outputs)))
        best: tuple[float, list[Launch]] | None = None
        for parts in _partitions(profiles):
            found = _serve(spec, total, family, parts, ends)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        assert best is not None, "each profile by itself, one sequence a launch, is always possible"
        launches += best[1]
    return launches


def _families(spec: GraphSpec, waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    """Windows that may share a profile: of one path of the graph, and where rows can be chosen."""
    caches = {pair.output for pair in spec.aliases}
    chosen = any(tensor.name == "logits_rows" for tensor in spec.inputs) and spec.drafted == 1
    found: dict[object, list[Waiting]] = {}
    for window in waiting:
        profile = window.profile
        written = frozenset(name for name in caches if profile.computes(name))
        path = (profile.file, written, profile.computes("top_ids"))
        found.setdefault(path if chosen else profile.name, []).append(window)
    return list(found.values())


def _partitions(profiles: Sequence[Profile]) -> Iterator[list[Sequence[Profile]]]:
    """Every way to cut profiles, ascending in width, into runs; the last of a run launches it."""
    for cuts in range(2 ** (len(profiles) - 1)):
        parts, begin = [], 0
        for index in range(1, len(profiles) + 1):
            if index == len(profiles) or cuts >> (index - 1) & 1:
                parts.append(profiles[begin:index])
                begin = index
        yield parts


def _serve(
    spec: GraphSpec,
    total: int,
    family: Sequence[Waiting],
    parts: Sequence[Sequence[Profile]],
    ends: Mapping[int, int],
) -> tuple[float, list[Launch]] | None:
    price, launches = 0.0, []
    for part in parts:
        profile = part[-1]
        names = {one.name for one in part}
        members = [window for window in family if window.profile.name in names]
        if any(one is not profile and not _holds(spec, profile, one) for one in part):
            return None
        last = spec.capacity - rows_written(spec, profile.width)
        if any(window.start > last for window in members):
            return None
        rows = sorted(window.row for window in members)
        barred = {row for row, end in ends.items() if end > last and row not in rows}
        sizes = [size for size in spec.sizes_of(profile) if size <= total]
        for first, size in cover(rows, sizes, total, barred, profile.width):
            price += cost(size, profile.width)
            inside = tuple(row for row in rows if first <= row < first + size)
            launches.append(Launch(profile, first, size, inside))
            rows = [row for row in rows if row not in inside]
    return price, launches


def _holds(spec: GraphSpec, wide: Profile, narrow: Profile) -> bool:
    """Whether a window of `narrow` can ride at `wide`: as many rows at least, and all that it computes."""
    if wide.feeds_prompts or wide.width < narrow.width or wide.rows < narrow.rows:
        return False
    return all(wide.computes(t.name) for t in spec.outputs if narrow.computes(t.name))


def cover(
    rows: Sequence[int], sizes: Sequence[int], total: int, barred: set[int], width: int
) -> list[tuple[int, int]]:
    """(first, size) of the cheapest launches over `rows`, ascending: each of one of `sizes`, none over a barred row."""
    best: dict[int, tuple[float, list[tuple[int, int]]]] = {len(rows): (0.0, [])}
    for index in range(len(rows) - 1, -1, -1):
        options = []
        for size in sizes:
            first = _place(rows[index], size, total, barred)
            if first is None:
                continue
            after = next((i for i in range(index, len(rows)) if rows[i] >= first + size), len(rows))
            price, launches = best[after]
            options.append((price + cost(size, width), [(first, size), *launches]))
        best[index] = min(options, key=lambda option: option[0])
    return best[0][1]


def _place(row: int, size: int, total: int, barred: set[int]) -> int | None:
    """Where `size` sequences with `row` among them begin, as far right as they may; None: nowhere."""
    for first in range(min(row, total - size), max(row - size, -1), -1):
        if not barred.intersection(range(first, first + size)):
            return first
    return None
