"""Renders the scheduler's totals and the server's requests in Prometheus' text format.

Totals are read when they are asked for, so that a token costs nothing here.
"""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from specruntime.serving.events import Figures
from specruntime.serving.scheduler import Scheduler

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """One registry of its own: two servers in a process do not meet."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Totals(scheduler))
        self._responses = Counter(
            "specruntime_responses",
            "Responses by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._first = Histogram(
            "specruntime_first_token_seconds", "From a request to its first token.",
            buckets=_FIRST, registry=self._registry,
        )  # fmt: skip
        self._token = Histogram(
            "specruntime_token_seconds", "Mean time of a token after the first round, per answer.",
            buckets=_TOKEN, registry=self._registry,
        )  # fmt: skip
        self._queued = Histogram(
            "specruntime_queue_seconds",
            "From a request to its slot.",
            buckets=_FIRST,
            registry=self._registry,
        )

    def count_response(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def count_answer(self, figures: Figures) -> None:
        """Book a request that got at least one token."""
        self._queued.observe(figures.queued_seconds)
        self._first.observe(figures.first_seconds)
        if figures.decode_tokens_per_second:
            self._token.observe(1 / figures.decode_tokens_per_second)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Totals(Collector):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def describe(self) -> list[Metric]:
        return []  # names are known without a collection, and a collection needs a scheduler

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield self._round_sizes()

    def _gauges(self) -> Iterator[Metric]:
        now = self._scheduler.occupancy()
        for name, value, text in (
            ("slots", now.slots, "Slots that work."),
            ("slots_active", now.active, "Slots that answer."),
            ("queue_length", now.queued, "Requests that wait for a slot."),
            ("queue_limit", now.queue_limit, "Requests that may wait."),
            ("kv_rows", now.rows, "KV cache rows in use."),
            ("kv_rows_limit", now.row_limit, "KV cache rows of all slots."),
            ("accepting", self._scheduler.accepting, "1 while new requests are taken."),
        ):
            yield GaugeMetricFamily(f"specruntime_{name}", text, value=float(value))
        rates = GaugeMetricFamily(
            "specruntime_acceptance_ratio",
            "Share of drafting rounds that accepted the draft at this position, since the start.",
            labels=("position",),
        )
        for position, rate in enumerate(self._scheduler.totals.acceptance_by_position, start=1):
            rates.add_metric((str(position),), rate)
        yield rates

    def _counters(self) -> Iterator[Metric]:
        totals = self._scheduler.totals
        for name, value, text in (
            ("prompt_tokens", totals.prompt_tokens, "Tokens of admitted prompts."),
            (
                "cached_prompt_tokens",
                totals.cached_tokens,
                "Of these, tokens whose cache rows were there already.",
            ),
            ("tokens", totals.tokens, "Tokens delivered."),
            ("rounds", totals.rounds, "Rounds that delivered."),
            ("drafting_rounds", totals.drafting_rounds, "Rounds that judged drafted tokens."),
            ("proposed_tokens", totals.proposed, "Drafted tokens put to the target."),
            ("accepted_tokens", totals.accepted, "Drafted tokens that it agreed with."),
            ("slot_failures", totals.slot_failures, "Answers ended by an engine failure."),
        ):
            yield CounterMetricFamily(f"specruntime_{name}", text, value=float(value))
        for name, label, values, text in (
            ("accepted_at", "position", {str(p + 1): n for p, n in dict(totals.accepted_at).items()},
             "Drafting rounds that accepted the draft at this position."),
            ("requests_ended", "reason", dict(totals.ended), "Requests by how they ended."),
            ("requests_refused", "reason", dict(totals.refused), "Requests that were not taken."),
            ("phase_seconds", "phase", asdict(totals.seconds), "Where the time of turns went."),
        ):  # fmt: skip
            family = CounterMetricFamily(f"specruntime_{name}", text, labels=(label,))
            for key, number in sorted(values.items()):
                family.add_metric((key,), float(number))
            yield family

    def _round_sizes(self) -> Metric:
        sizes = dict(self._scheduler.totals.round_sizes)
        buckets: list[tuple[str, float]] = []
        total = 0
        for size in range(1, max(sizes, default=1) + 1):
            total += sizes.get(size, 0)
            buckets.append((str(float(size)), float(total)))
        buckets.append(("+Inf", float(total)))
        committed = float(sum(size * number for size, number in sizes.items()))
        family = HistogramMetricFamily("specruntime_round_tokens", "Tokens committed by a round.")
        family.add_metric((), buckets, committed)
        return family
