"""Counts runs, and exports the counters of runs and of the pool in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from hutch.kernel.execution import Execution
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.pool.stats import EndReason, PoolCounters
from hutch.session.run import Result, RunHandle

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Upper bounds of the duration histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RunCounters:
    """Counters since the start. They are plain numbers to keep counting cheap."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.tool_calls: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}

    def count(self, execution: Execution, run: RunHandle, result: Result) -> None:
        engine, seconds = execution.profile.engine, result.duration_ms / 1000
        self.outcomes[execution.protocol, engine, run.outcome] += 1
        if execution.is_internal:
            # The other metrics have no label for the protocol. They describe only the runs of callers.
            return
        self.tool_calls[engine] += run.call_count
        self.retries[engine] += run.retries
        self.seconds[engine] = self.seconds.get(engine, 0.0) + seconds
        self.buckets.setdefault(engine, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1


class _Collector:
    """Reads the counters and the pool for each scrape."""

    def __init__(self, runs: RunCounters, pool: Pool) -> None:
        self._runs = runs
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        yield from self._run_metrics()
        yield from self._pool_metrics()

    def _run_metrics(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        runs = CounterMetricFamily("hutch_runs", "Runs by outcome.", labels=["protocol", "engine", "outcome"])
        for labels, value in self._runs.outcomes.items():
            runs.add_metric(labels, value)
        yield runs
        calls = CounterMetricFamily("hutch_tool_calls", "Tool calls by guests.", labels=["engine"])
        for engine, value in self._runs.tool_calls.items():
            calls.add_metric([engine], value)
        yield calls
        retries = CounterMetricFamily(
            "hutch_runs_begun_again", "Retries of runs whose runner was lost.", labels=["engine"]
        )
        for engine, value in self._runs.retries.items():
            retries.add_metric([engine], value)
        yield retries
        durations = HistogramMetricFamily("hutch_run_seconds", "Duration of runs.", labels=["engine"])
        for engine, counts in self._runs.buckets.items():
            total, cumulative = 0, []
            for bound, value in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += value
                cumulative.append((bound, total))
            durations.add_metric([engine], cumulative, self._runs.seconds[engine])
        yield durations

    def _pool_metrics(self) -> Iterator[Metric]:
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
        yield GaugeMetricFamily("hutch_executions_waiting", "Executions waiting for a runner.", stats.waiting)
        yield from self._pool_counter_metrics(stats.counters)

    def _pool_counter_metrics(self, counters: PoolCounters) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

        yield CounterMetricFamily("hutch_processes_started", "Runner processes started.", counters.started)
        ended = CounterMetricFamily("hutch_processes_ended", "Runner processes that ended.", labels=["why"])
        for why in get_args(EndReason):
            ended.add_metric([why], counters.ended[why])
        yield ended
        yield CounterMetricFamily(
            "hutch_executions_refused",
            "Executions refused: no runner became free in time.",
            counters.refused,
        )
        yield SummaryMetricFamily(
            "hutch_wait_seconds",
            "Time that executions waited for a runner.",
            counters.waited,
            counters.waited_seconds,
        )


def exposition(runs: RunCounters, pool: Pool) -> bytes:
    """Returns all metrics in the Prometheus text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(runs, pool))
    return generate_latest(registry)
