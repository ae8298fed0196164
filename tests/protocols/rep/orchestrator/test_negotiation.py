"""Comparison of a flow with the capabilities of a runtime."""

from __future__ import annotations

import pytest
from tests.protocols.rep.flows import document, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.orchestrator.negotiation import (
    RuntimeCapabilities,
    UnsuitableRuntime,
    check_step_kinds,
)

SUPPORTED = RuntimeCapabilities(version="1", step_kinds=("http.get", "wait"), limits={})


def test_message_about_thousands_of_unknown_kinds_is_short() -> None:
    flow = parse_flow(document([step(f"s{number}", f"http.gt{number}") for number in range(5_000)]))
    with pytest.raises(UnsuitableRuntime) as refused:
        check_step_kinds(flow, SUPPORTED, "other")
    message = str(refused.value)
    assert message.startswith(
        "The runtime other has no steps of the kind http.gt0 (did you mean http.get?), http.gt1 "
    )
    assert "and 4970 more" in message
    assert len(message) < 2_000
    assert refused.value.wire["data"]["step_id"] == "s0"


def test_control_kinds_need_no_support() -> None:
    check_step_kinds(parse_flow(document([step("end", "finish"), step("w", "wait")])), SUPPORTED, "other")
