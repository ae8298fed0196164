"""Asks the user of a client whether a call may be made, where the policy wants somebody asked."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.types import ElicitResult

from hutch.doors.mcp.answers import clip, json_text
from hutch.doors.mcp.runs import Runs
from hutch.doors.toolscript.approvals import Answer, Approval
from hutch.session.jsonvalue import well_formed

_MOST_SHOWN = 2_000
_NOBODY = (
    "its policy wants a person to be asked, and this client cannot ask one;"
    " whoever runs Hutch can allow it in hutch.toml, [approvals]"
)
_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "remember": {
            "type": "boolean",
            "title": "Allow this tool for the rest of the run",
            "default": False,
        }
    },
}


class Asker:
    """By MCP's elicitation. `alone`: there is one client, and nobody at `/approvals` who could answer."""

    def __init__(self, runs: Runs, *, alone: bool) -> None:
        self._runs = runs
        self._alone = alone

    async def __call__(self, approval: Approval) -> Answer:
        run = self._runs.known(approval.run)
        if run is not None and _can_ask(run.client):
            try:
                return _answer(await _elicit(run.client, approval))
            except (MCPError, NoBackChannelError):
                # It said that it could: somebody else may still answer.
                pass
        if self._alone:
            return Answer("deny", _NOBODY)
        return await asyncio.Future()


def _can_ask(client: ServerRequestContext[Any, Any]) -> bool:
    able = client.session.client_capabilities
    if able is None or able.elicitation is None or not client.session.can_send_request:
        return False
    # Of old, a client that says nothing more has forms.
    return able.elicitation.form is not None or able.elicitation.url is None


async def _elicit(client: ServerRequestContext[Any, Any], approval: Approval) -> ElicitResult:
    shown = clip(json_text(approval.arguments), _MOST_SHOWN)
    return await client.session.elicit_form(
        well_formed(f"May {approval.tool} of {approval.server} be called?\n{shown}"),
        _FORM,
        related_request_id=client.request_id,
    )


def _answer(said: ElicitResult) -> Answer:
    if said.action != "accept":
        return Answer("deny", "the user said no" if said.action == "decline" else "the user did not answer")
    return Answer("allow", remember=bool((said.content or {}).get("remember")))
