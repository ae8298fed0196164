"""Lists all metrics of a server, each with at least one value."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hutch.app.metrics import server_metrics
from hutch.kernel.execution import Execution
from hutch.kernel.metrics import RunCounters, exposition
from hutch.kernel.placement import ClusterLoad
from hutch.queue.stats import QueueStats
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle
from hutch.settings import Settings
from hutch.store.write_behind import QueueState
from hutch.telemetry.counters import EgressCounters, InstallCounters
from hutch.telemetry.tracer import ExportCounters


def _no_runner(*_: Any) -> Any:
    raise AssertionError("started a runner")


def all_metrics() -> str:
    """Returns the text of `/metrics` of a server in which every feature that has a metric was used."""
    counters, installs, egress = RunCounters(), InstallCounters(), EgressCounters()
    run = RunHandle(outcome="ok")
    counters.count(Execution(code="", profile=profile_for("quickjs")), run, Result(ok=True))
    counters.refusals["max_executions_per_minute"] += 1
    installs.add("ok", 1.0)
    egress.add("fetch", "ok")
    egress.add_bytes("fetch", 1, 2)
    pool = Pool(Settings(), launch=_no_runner)
    families = server_metrics(
        isolation="container",
        is_ready=True,
        runs=counters,
        owner_name=lambda owner: None,
        pool=pool,
        installs=installs,
        egress=egress,
        records=QueueState(3, 0, None, 2),
        spans=ExportCounters(),
        cluster=ClusterLoad({"quickjs": 1}, {"quickjs": 8}, 1),
        queue=QueueStats({"queued": 1}, 2.0, {"pending": 1}),
    )
    return exposition(families).decode()


def exported_families() -> set[str]:
    """Returns the names of Hutch's own metrics, as the documentation lists them."""
    families = text_string_to_metric_families(all_metrics())
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if not family.name.startswith("process_")
    }


def exported_series() -> dict[str, set[str]]:
    """Returns the names that expressions may use, and the labels of each name. Gauges of engines have no
    values without a runner, so this function adds them.
    """
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(all_metrics()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        for suffix in suffixes:
            found[family.name + suffix] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    for name in ("hutch_processes", "hutch_processes_warm", "hutch_executions_in_flight"):
        found[name] = {"engine"}
    return found
