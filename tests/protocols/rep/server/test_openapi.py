"""Methods, origins and the OpenAPI document of the flows API."""

from __future__ import annotations

import httpx2
from tests.protocols.rep.flow_server import FlowClient
from tests.protocols.rep.server.helpers import WAIT, assert_error, wait_for_approvals
from tests.support.flows import flow, node
from tests.support.openapi import OpenApiChecker


async def test_other_methods_and_invalid_queries_are_refused(ann: FlowClient) -> None:
    response = await ann.call("PUT", "/flows")
    assert "GET, POST" in assert_error(response, 405, "METHOD_NOT_ALLOWED")["message"]
    assert response.headers["allow"] == "GET, POST"
    assert_error(await ann.get("/runs?limit=x"), 400, "INVALID_REQUEST")
    assert_error(await ann.get("/flows?after=a%00b"), 400, "INVALID_REQUEST")
    assert (await ann.call("HEAD", "/flows")).status_code == 200


async def test_foreign_origin_is_refused(operator: FlowClient) -> None:
    response = await operator.call("GET", "/flows", headers={"Origin": "https://evil.example"})
    assert response.status_code == 403


async def test_responses_match_the_openapi_document(ann: FlowClient, operator: FlowClient, rid: str) -> None:
    api = OpenApiChecker(await FlowClient(ann.server, ann.client).get_json("/openapi.json"))

    def check(path: str, method: str, response: httpx2.Response) -> None:
        api.check_response(method, path, response)

    check("/flows", "post", await ann.post("/flows", WAIT))
    check("/flows", "post", await ann.post("/flows", WAIT))
    check("/flows", "post", await ann.post("/flows", {}))
    check("/flows", "get", await ann.get("/flows?limit=1"))
    check("/flows/{name}", "get", await ann.get("/flows/short"))
    check("/flows/{name}", "get", await ann.get("/flows/none"))
    for _ in range(2):
        check("/flows/{name}/runs", "post", await ann.post("/flows/short/runs", {"run_id": rid}))
    check(
        "/flows/{name}/runs", "post", await ann.post("/flows/short/runs", {"run_id": rid, "inputs": {"a": 1}})
    )
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}"))
    await ann.wait_for_end(rid)
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}"))
    check("/runs", "get", await ann.get("/runs"))
    check("/runs/{id}/cancel", "post", await ann.post(f"/runs/{rid}/cancel"))
    check("/runs/{id}/resume", "post", await ann.post(f"/runs/{rid}/resume"))
    await ann.start_run(flow([node("ask", "approve", message="?")], name="asks"), f"{rid}-ask")
    await wait_for_approvals(ann, f"{rid}-ask")
    check("/runs/{id}/approvals", "get", await ann.get(f"/runs/{rid}-ask/approvals"))
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    response = await ann.post(f"/runs/{rid}-ask/approvals/ask", {"approved": False})
    check("/runs/{id}/approvals/{step_id}", "post", response)
    await ann.wait_for_end(f"{rid}-ask")
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    check("/flows/{name}", "delete", await ann.call("DELETE", "/flows/short"))
