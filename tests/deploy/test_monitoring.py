"""The dashboard and the alert rules use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from tests.support.metrics import exported_series

DEPLOY = Path(__file__).parents[2] / "deploy"
# Labels that Prometheus adds to the series of a server.
TARGET_LABELS = {"instance", "job", "le"}
METRIC = re.compile(r"\b((?:hutch|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana/hutch.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


EXPRESSIONS = [*dashboard_expressions(), *(rule["expr"] for rule in alerts())]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_uses_exported_metrics_and_labels(expression: str) -> None:
    series = exported_series() | {"up": set()}
    used = METRIC.findall(expression)
    assert used, "an expression without a metric"
    grouped = {name.strip() for names in GROUPING.findall(expression) for name in names.split(",")}
    for name, matchers in used:
        labels = {*MATCHER.findall(matchers)} | grouped
        assert name in series, f"{name} is not in /metrics"
        assert labels - series[name] - TARGET_LABELS == set(), name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_is_valid_promql(expression: str) -> None:
    for variable, value in (("$__rate_interval", "5m"), ("$__range", "1h")):
        expression = expression.replace(variable, value)
    promql_parser.parse(expression)


def test_query_of_the_autoscaler_is_valid_promql_and_has_its_metric() -> None:
    adapter = yaml.safe_load((DEPLOY / "kubernetes/prometheus-adapter.yaml").read_text())
    [rule] = adapter["rules"]["external"]
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'kind="quickjs"')
    promql_parser.parse(query)
    promql_parser.parse(rule["seriesQuery"])
    assert {name for name, _ in METRIC.findall(query)} == {rule["name"]["as"]}
    with pytest.raises(ValueError, match="unknown function"):
        promql_parser.parse("summ(up)")


def test_every_metric_is_in_the_dashboard() -> None:
    shown = {name for expression in dashboard_expressions() for name, _ in METRIC.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    exported = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in exported_series() if name.startswith("hutch_")
    }
    assert exported - families == set()


def test_panels_have_different_ids_and_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana/hutch.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_alerts_have_a_severity_and_say_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= rule["annotations"].keys()
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
