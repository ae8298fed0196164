"""Counts runs, and exports the counters of runs and of the pool in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, get_args

from hutch.kernel.execution import Execution
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.pool.stats import EndReason, PoolCounters
from hutch.session.run import Result, RunHandle
from hutch.telemetry.counters import Histogram, OwnerCounters

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Upper bounds of the duration histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

OwnerName = Callable[[str], str | None]


class RunCounters:
    """Counters of runs since the process started."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.owners = OwnerCounters()
        self.tool_calls: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """Durations by protocol and engine."""
        self.longest_ms = 0.0
        """Longest duration since the load history has read it."""
        self.refusals: Counter[str] = Counter()
        """Number of executions that exceeded a limit of their owner or key and were refused, by the name of
        the limit.
        """

    def count(self, execution: Execution, run: RunHandle, result: Result) -> None:
        protocol, engine = execution.protocol, execution.profile.engine
        self.outcomes[protocol, engine, run.outcome] += 1
        if execution.is_internal:
            # Executions that Hutch starts for itself are not counted in the other metrics.
            return
        self.owners.add(execution.owner, run.outcome == "ok")
        self.tool_calls[engine] += run.call_count
        self.retries[engine] += run.retries
        durations = self.seconds.get((protocol, engine))
        if durations is None:
            durations = self.seconds[protocol, engine] = Histogram(BUCKETS)
        durations.add(result.duration_ms / 1000)
        self.longest_ms = max(self.longest_ms, result.duration_ms)


def run_metrics(runs: RunCounters, owner_name: OwnerName = lambda owner: None) -> Iterator[Metric]:
    """Yields the metrics of runs. `owner_name` returns the display name of an owner, or None."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    total = CounterMetricFamily("hutch_runs", "Runs by outcome.", labels=["protocol", "engine", "outcome"])
    for labels, value in runs.outcomes.items():
        total.add_metric(labels, value)
    yield total
    owners = CounterMetricFamily(
        "hutch_owner_runs", "Runs of the most active owners.", labels=["owner", "result"]
    )
    runs.owners.rank()
    for owner, is_ok, value in runs.owners.items():
        owners.add_metric([owner_name(owner) or owner, "ok" if is_ok else "failed"], value)
    yield owners
    calls = CounterMetricFamily("hutch_tool_calls", "Tool calls by guests.", labels=["engine"])
    for engine, value in runs.tool_calls.items():
        calls.add_metric([engine], value)
    yield calls
    retries = CounterMetricFamily(
        "hutch_runs_begun_again", "Retries of runs whose runner was lost.", labels=["engine"]
    )
    for engine, value in runs.retries.items():
        retries.add_metric([engine], value)
    yield retries
    refusals = CounterMetricFamily(
        "hutch_quota_refusals", "Executions refused because of a limit of their owner.", labels=["limit"]
    )
    for limit, value in runs.refusals.items():
        refusals.add_metric([limit], value)
    yield refusals
    durations = HistogramMetricFamily("hutch_run_seconds", "Duration of runs.", labels=["protocol", "engine"])
    for names, histogram in runs.seconds.items():
        durations.add_metric(names, histogram.cumulative(), histogram.sum)
    yield durations


def pool_metrics(pool: Pool) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    stats = pool.stats()
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
    yield from _pool_counter_metrics(stats.counters)


def _pool_counter_metrics(counters: PoolCounters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

    yield CounterMetricFamily("hutch_processes_started", "Runner processes started.", counters.started)
    ended = CounterMetricFamily("hutch_processes_ended", "Runner processes that ended.", labels=["why"])
    for why in get_args(EndReason):
        ended.add_metric([why], counters.ended[why])
    yield ended
    yield CounterMetricFamily(
        "hutch_executions_refused", "Executions refused: no runner became free in time.", counters.refused
    )
    yield SummaryMetricFamily(
        "hutch_wait_seconds",
        "Time that executions waited for a runner.",
        counters.waited,
        counters.waited_seconds,
    )


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Formats `metrics`, and the metrics of the process itself, in the Prometheus text format."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    class Collected:
        def collect(self) -> Iterable[Metric]:
            return metrics

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    ProcessCollector(registry=registry)
    return generate_latest(registry)
