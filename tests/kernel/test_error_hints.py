"""Hints in error messages about MCP servers that are not connected."""

from __future__ import annotations

import pytest

from hutch.errors import ExecutionError
from hutch.kernel.error_hints import with_unavailable_servers
from hutch.session.run import Result


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("ReferenceError", "nope is not defined", "nope is not defined"),
        ("ReferenceError", "slack is not defined", "slack is not defined; not connected: MCP server slack"),
        (
            "TypeCheckError",
            "Property 'slack' does not exist\n  |  ^",
            "Property 'slack' does not exist\n  |  ^\nnot connected: MCP server slack",
        ),
    ],
)
def test_only_errors_about_tools_name_servers_that_are_not_connected(
    name: str, message: str, expected: str
) -> None:
    result = Result(ok=False, error=ExecutionError("runtime_error", message, name))
    explained = with_unavailable_servers(result, {"slack": ""})
    assert explained.error is not None
    assert explained.error.message == expected
    assert explained.warnings == ("the MCP server slack is not connected",)
