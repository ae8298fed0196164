"""Requests that scripts on a worker send to the gateway of their front."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hutch.cluster.gateway_relay import RelayedGateway, RelayedRequests


def gateway(link: bytes, revision: str = "r") -> RelayedGateway:
    stub: Any = SimpleNamespace(id=link)
    return RelayedGateway(RelayedRequests(stub), "http://10.0.0.1:80", revision)


def test_runners_are_kept_for_the_same_link_only() -> None:
    """The gateway of a runner is bound to one link. If that link is lost, scripts in the runner can no longer
    reach the front.
    """
    profiles = {gateway(b"1"): "kept"}
    assert profiles.get(gateway(b"1")) == "kept"
    assert profiles.get(gateway(b"2")) is None
    assert profiles.get(gateway(b"1", "changed")) is None
