"""Hostile texts in run records, and in requests for them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from tests.support.processes import NO_WARM_RUNNERS, running_server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    home = str(tmp_path_factory.mktemp("home"))
    with (
        running_server(HUTCH_HOME=home, HUTCH_RECORD="full", **NO_WARM_RUNNERS) as server,
        httpx2.Client(base_url=server.url, timeout=60) as opened,
    ):
        yield opened


def run(client: httpx2.Client, body: bytes) -> httpx2.Response:
    return client.post("/run", content=body, headers={"Content-Type": "application/json"})


def test_record_with_lone_surrogates_can_be_read_and_replayed(client: httpx2.Client) -> None:
    run_id = run(client, rb'{"code": "return x", "inputs": {"x": "\ud800\u0000"}}').json()["run_id"]
    shown = client.get(f"/runs/{run_id}")
    assert (shown.status_code, shown.json()["output"]) == (200, "\ud800\0")
    assert client.get(f"/runs/{run_id}/events").text.count("event: end") == 1
    replayed = client.post(f"/runs/{run_id}/replay?wait=true", json={})
    assert (replayed.status_code, replayed.json()["output"]) == (200, "\ud800\0")


def test_code_with_a_lone_surrogate_is_refused(client: httpx2.Client) -> None:
    response = run(client, rb'{"code": "return \"\ud800\""}')
    assert response.status_code == 400
    assert "code: expected well-formed Unicode" in response.json()["error"]["message"]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_time_that_no_clock_can_show_is_refused(client: httpx2.Client, time: str) -> None:
    response = client.get("/runs", params={"since": time})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("since: expected a time")
