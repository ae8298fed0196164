"""What programs find on the server: its methods, its document."""

from __future__ import annotations

from typing import Any

import httpx2
import jsonschema_rs
from tests.doors.rep.server.answers import WAIT, approvals, failed
from tests.doors.rep.stations import Caller
from tests.flows import flow, node

from hutch.doors.rep import openapi
from hutch.doors.rep.http import routes
from hutch.settings import Settings


async def test_other_methods_and_paths_are_refused(ann: Caller) -> None:
    answer = await ann.call("PUT", "/flows")
    assert "GET, POST" in failed(answer, 405, "METHOD_NOT_ALLOWED")["message"]
    assert answer.headers["allow"] == "GET, POST"
    failed(await ann.get("/runs?limit=x"), 400, "INVALID_REQUEST")
    failed(await ann.get("/flows?after=a%00b"), 400, "INVALID_REQUEST")
    assert (await ann.call("HEAD", "/flows")).status_code == 200


async def test_page_of_another_site_may_not_come(operator: Caller) -> None:
    answer = await operator.call("GET", "/flows", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


async def test_document_is_served_and_tells_the_truth(ann: Caller, operator: Caller, rid: str) -> None:
    public = Caller(ann.server, ann.client)
    document = await public.got("/flows/openapi.json")
    assert document == openapi.document(Settings())

    def check(path: str, method: str, answer: httpx2.Response) -> None:
        content = document["paths"][path][method]["responses"][str(answer.status_code)]["content"]
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        jsonschema_rs.validator_for(schema).validate(answer.json())

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
    await ann.ended(rid)
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}"))
    check("/runs", "get", await ann.get("/runs"))
    check("/runs/{id}/cancel", "post", await ann.post(f"/runs/{rid}/cancel"))
    check("/runs/{id}/resume", "post", await ann.post(f"/runs/{rid}/resume"))
    await ann.begin(flow([node("ask", "approve", message="?")], name="asks"), f"{rid}-ask")
    await approvals(ann, f"{rid}-ask")
    check("/runs/{id}/approvals", "get", await ann.get(f"/runs/{rid}-ask/approvals"))
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    answer = await ann.post(f"/runs/{rid}-ask/approvals/ask", {"approved": False})
    check("/runs/{id}/approvals/{step_id}", "post", answer)
    await ann.ended(f"{rid}-ask")
    check("/runs/{id}", "get", await ann.get(f"/runs/{rid}-ask"))
    check("/flows/{name}", "delete", await ann.call("DELETE", "/flows/short"))


def test_document_has_every_path() -> None:
    from hutch.doors.gate import Gate
    from hutch.doors.rep.flows import Flows

    settings = Settings()

    async def no_store() -> Any:
        raise AssertionError

    served = set()
    for each in routes(Flows(settings, no_store), Gate(settings)):
        path = each.path.replace(":path", "")  # type: ignore[attr-defined]
        works = getattr(each.app, "_works", {"GET": None})  # type: ignore[attr-defined]
        served |= {(path, method.lower()) for method in works}
    told = {(path, method) for path, item in openapi.document(settings)["paths"].items() for method in item}
    assert told == served
