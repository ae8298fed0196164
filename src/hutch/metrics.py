"""Counters of every run and of the pool, in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from hutch.sandbox.pool import Pool
from hutch.sandbox.stats import Tally, Why
from hutch.session.host import Outcome

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hutch.kernel import Execution

# Upper bounds of the duration histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RunCounters:
    """What happened since the start; plain numbers, so that counting costs next to nothing."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.tool_calls: Counter[str] = Counter()
        self.begun_again: Counter[str] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}

    def count(self, execution: Execution, outcome: Outcome) -> None:
        engine, seconds = execution.profile.engine, outcome.duration_ms / 1000
        self.outcomes[execution.door, engine, execution.code_of(outcome)] += 1
        self.tool_calls[engine] += outcome.call_count
        self.begun_again[engine] += outcome.begun_again
        self.seconds[engine] = self.seconds.get(engine, 0.0) + seconds
        self.buckets.setdefault(engine, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1


class _Collector:
    """Reads the counters and the pool when somebody scrapes."""

    def __init__(self, runs: RunCounters, pool: Pool) -> None:
        self._runs = runs
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        yield from self._of_runs()
        yield from self._of_pool()

    def _of_runs(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        runs = CounterMetricFamily("hutch_runs", "Runs by outcome.", labels=["door", "engine", "outcome"])
        for labels, value in self._runs.outcomes.items():
            runs.add_metric(labels, value)
        yield runs
        calls = CounterMetricFamily("hutch_tool_calls", "Tool calls by guests.", labels=["engine"])
        for engine, value in self._runs.tool_calls.items():
            calls.add_metric([engine], value)
        yield calls
        again = CounterMetricFamily(
            "hutch_runs_begun_again", "Runs whose runner was lost by a neighbour's fault.", labels=["engine"]
        )
        for engine, value in self._runs.begun_again.items():
            again.add_metric([engine], value)
        yield again
        durations = HistogramMetricFamily("hutch_run_seconds", "Duration of runs.", labels=["engine"])
        for engine, filled in self._runs.buckets.items():
            total, cumulative = 0, []
            for bound, value in zip((*map(str, BUCKETS), "+Inf"), filled, strict=True):
                total += value
                cumulative.append((bound, total))
            durations.add_metric([engine], cumulative, self._runs.seconds[engine])
        yield durations

    def _of_pool(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        stats = self._pool.stats()
        by_engine = {
            "hutch_processes": ("Runner processes.", stats.processes),
            "hutch_executions_in_flight": ("Executions in flight.", stats.in_flight),
            "hutch_processes_warm": ("Runner processes that wait for an execution.", stats.warm),
        }
        for name, (text, values) in by_engine.items():
            gauge = GaugeMetricFamily(name, text, labels=["engine"])
            for engine, value in values.items():
                gauge.add_metric([engine], value)
            yield gauge
        yield GaugeMetricFamily("hutch_processes_starting", "Runner processes being started.", stats.starting)
        yield GaugeMetricFamily("hutch_executions_waiting", "Executions waiting for a place.", stats.waiting)
        yield from self._of_tally(stats.tally)

    def _of_tally(self, tally: Tally) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

        yield CounterMetricFamily("hutch_processes_started", "Runner processes started.", tally.started)
        ended = CounterMetricFamily("hutch_processes_ended", "Runner processes that ended.", labels=["why"])
        for why in get_args(Why):
            ended.add_metric([why], tally.ended[why])
        yield ended
        yield CounterMetricFamily(
            "hutch_executions_refused", "Executions for which no place came free in time.", tally.refused
        )
        yield SummaryMetricFamily(
            "hutch_wait_seconds",
            "Waiting for a place, of those that had to.",
            tally.waited,
            tally.waited_seconds,
        )


def exposition(runs: RunCounters, pool: Pool) -> bytes:
    """Everything, as Prometheus reads it."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(runs, pool))
    return generate_latest(registry)
