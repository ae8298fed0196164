"""Metrics of a server, from the counters of all its components."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hutch._version import __version__
from hutch.kernel.metrics import pool_metrics, run_metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hutch.kernel.metrics import RunCounters
    from hutch.kernel.placement import ClusterLoad
    from hutch.queue.stats import QueueStats
    from hutch.sandbox.pool.pool import Pool
    from hutch.store.write_behind import QueueState
    from hutch.telemetry.counters import EgressCounters, InstallCounters
    from hutch.telemetry.tracer import ExportCounters


def server_metrics(
    *,
    isolation: str,
    is_ready: bool,
    runs: RunCounters,
    owner_name: Callable[[str], str | None],
    pool: Pool,
    installs: InstallCounters,
    egress: EgressCounters,
    records: QueueState | None,
    spans: ExportCounters | None,
    cluster: ClusterLoad | None = None,
    queue: QueueStats | None = None,
) -> Iterator[Metric]:
    """`records` is None while run records are not stored, `spans` if there are no traces, `cluster` if there
    is no cluster, and `queue` if the database does not answer.
    """
    from prometheus_client.core import GaugeMetricFamily

    info = GaugeMetricFamily("hutch_info", "Version and isolation.", labels=["version", "isolation"])
    info.add_metric([__version__, isolation], 1)
    yield info
    yield GaugeMetricFamily("hutch_ready", "1 if /ready answers 200, 0 if it answers 503.", int(is_ready))
    yield from run_metrics(runs, owner_name)
    yield from pool_metrics(pool)
    yield from _install_metrics(installs)
    yield from _egress_metrics(egress)
    if records is not None:
        yield from _record_metrics(records)
    if spans is not None:
        yield from _trace_metrics(spans)
    if cluster is not None:
        yield from _cluster_metrics(cluster)
    if queue is not None:
        yield from _queue_metrics(queue)


def _install_metrics(installs: InstallCounters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    outcomes = CounterMetricFamily(
        "hutch_installs", "Installations of npm packages by outcome.", labels=["outcome"]
    )
    for outcome, value in installs.outcomes.items():
        outcomes.add_metric([outcome], value)
    yield outcomes
    yield HistogramMetricFamily(
        "hutch_install_seconds",
        "Duration of installations.",
        buckets=installs.seconds.cumulative(),
        sum_value=installs.seconds.sum,
    )


def _egress_metrics(egress: EgressCounters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    requests = CounterMetricFamily(
        "hutch_egress_requests",
        "Requests of abilities and flows (fetch), and connections of tools (proxy), by outcome.",
        labels=["client", "outcome"],
    )
    for labels, value in egress.outcomes.items():
        requests.add_metric(labels, value)
    yield requests
    sent = CounterMetricFamily("hutch_egress_sent_bytes", "Bytes sent by guests.", labels=["client"])
    received = CounterMetricFamily(
        "hutch_egress_received_bytes", "Bytes received by guests.", labels=["client"]
    )
    for family, counts in ((sent, egress.sent_bytes), (received, egress.received_bytes)):
        for client, value in counts.items():
            family.add_metric([client], value)
        yield family


def _record_metrics(queue: QueueState) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily(
        "hutch_store_up", "1 if run records can be written, otherwise 0.", int(queue.failure is None)
    )
    yield GaugeMetricFamily("hutch_records_waiting", "Run records waiting to be written.", queue.waiting)
    yield CounterMetricFamily(
        "hutch_records_dropped",
        "Run records that were lost because too many waited.",
        queue.total_dropped,
    )


def _cluster_metrics(load: ClusterLoad) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    wanted = GaugeMetricFamily(
        "hutch_wanted_places",
        "Executions of this server that run or wait, by kind of place.",
        labels=["kind"],
    )
    places = GaugeMetricFamily("hutch_worker_places", "Places of all workers, by kind.", labels=["kind"])
    for family, counts in ((wanted, load.wanted), (places, load.places)):
        for kind, count in counts.items():
            family.add_metric([kind], count)
        yield family
    yield GaugeMetricFamily("hutch_workers", "Workers that this server can use.", load.workers)


def _queue_metrics(stats: QueueStats) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    runs = GaugeMetricFamily(
        "hutch_async_runs", "Asynchronous runs of all servers, by state.", labels=["state"]
    )
    webhooks = GaugeMetricFamily(
        "hutch_webhook_messages", "Webhook messages of all servers, by state.", labels=["state"]
    )
    for family, counts in ((runs, stats.runs), (webhooks, stats.webhooks)):
        for state, count in counts.items():
            family.add_metric([state], count)
        yield family
    yield GaugeMetricFamily(
        "hutch_async_oldest_waiting_seconds",
        "Time for which the oldest queued run has waited.",
        stats.oldest_waiting_seconds,
    )


def _trace_metrics(counters: ExportCounters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    spans = CounterMetricFamily("hutch_spans", "Spans by outcome of their export.", labels=["outcome"])
    spans.add_metric(["exported"], counters.exported)
    spans.add_metric(["failed"], counters.failed)
    yield spans
