"""The playground: running code, diagnostics, tool calls as they happen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, running_server


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    """A server as `make serve` starts it."""
    with running_server(HUTCH_HOME=home, HUTCH_EXAMPLE_TOOLS="true") as running:
        yield running


def open_with(open_page: OpenPage, server: ServeProcess, code: str) -> Page:
    page = open_page(f"{server.url}/#/playground")
    page.get_by_label("Code", exact=True).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(code)
    return page


def test_newcomer_runs_the_example_and_finds_the_line_of_a_tool_call(
    server: ServeProcess, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    page.get_by_role("link", name="Run a snippet").click()
    expect(page.get_by_label("Code", exact=True)).to_contain_text("tools.shop.order")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("Tool calls (5)")).to_be_visible()
    page.locator("summary").filter(has_text="tools.shop.order").click()
    expect(page.locator(".call-list details[open] .code").first).to_contain_text('"article": "lamp"')
    page.get_by_role("link", name="Timeline").click()
    page.get_by_role("button", name=re.compile("^order lamp")).click()
    expect(page.locator(".line-focus")).to_contain_text("tools.shop.order")
    expect(page.get_by_text('"total": 80')).to_be_visible()


def test_result_and_log_are_shown_with_a_link_to_the_timeline(
    server: ServeProcess, open_page: OpenPage
) -> None:
    page = open_with(open_page, server, "console.log('hello from the guest');\nreturn { answer: 6 * 7 };")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text('"answer": 42')).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("hello from the guest")
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("playground")


def test_failure_names_its_line(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_with(open_page, server, "const x = 1;\nthrow new Error('it broke');")
    page.get_by_role("button", name="Run", exact=True).click()
    failure = page.get_by_role("alert")
    expect(failure).to_contain_text("it broke")
    expect(failure).to_contain_text("line 2")


def test_call_without_await_is_a_warning_and_a_cancelled_call(
    server: ServeProcess, open_page: OpenPage
) -> None:
    code = "tools.shop.order({ article: 'lamp', count: 1 });\nreturn 'ordered';"
    page = open_with(open_page, server, code)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("had not ended when the code returned")).to_contain_text("tools.shop.order")
    expect(page.get_by_text("Tool calls (1)")).to_be_visible()
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("button", name=re.compile("^order lamp"))).to_be_visible()


def test_late_list_of_tools_does_not_replace_what_the_user_types(
    server: ServeProcess, open_page: OpenPage, page: Page
) -> None:
    held: list[Route] = []
    page.route("**/tools", lambda route: held.append(route))
    open_with(open_page, server, "return 'typed early';")
    expect(page.get_by_label("Examples")).not_to_contain_text("Tool calls")
    held[0].continue_()
    expect(page.get_by_label("Examples")).to_contain_text("Tool calls")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".code").filter(has_text="typed early")).to_be_visible()
    page.unroute("**/tools")


def test_first_snippet_calls_a_tool_that_only_reads(server: ServeProcess, page: Page) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [
        {"scriptName": "tools.mail.send", "inputSchema": {}},
        {"scriptName": "tools.weather.now", "inputSchema": city, "readOnly": True},
    ]
    page.route("**/tools", lambda route: route.fulfill(json=tools))
    page.goto(f"{server.url}/#/playground")
    expect(page.get_by_label("Code", exact=True)).to_contain_text('await tools.weather.now({ city: "…" })')
    expect(page.get_by_label("Examples")).to_contain_text("Tool calls")
    page.unroute("**/tools")


def test_example_replaces_the_code_and_can_be_undone(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_with(open_page, server, "return 'mine';")
    page.get_by_label("Examples").select_option(index=1)
    editor = page.get_by_label("Code", exact=True)
    expect(editor).not_to_contain_text("mine")
    editor.click()
    page.keyboard.press("Control+z")
    expect(editor).to_contain_text("return 'mine';")


def test_type_error_is_marked_as_one_types(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_with(open_page, server, "const n: number = 'text';\nreturn n;")
    expect(page.locator(".cm-lintRange-error")).to_have_count(1)


def test_invalid_inputs_are_explained_and_nothing_runs(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_with(open_page, server, "return name;")
    page.get_by_label("Inputs (JSON)").fill("{name: Bo}")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Inputs: expected JSON")
    page.get_by_label("Inputs (JSON)").fill('{"name": "Bo"}')
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".code").filter(has_text='"Bo"')).to_be_visible()


def test_endless_run_can_be_stopped(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_with(open_page, server, "console.log('started');\nfor (;;) {}")
    page.get_by_label("Time limit (seconds)").fill("60")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("You stopped this run.")).to_be_visible()


def test_texts_of_a_guest_are_shown_and_never_interpreted(server: ServeProcess, open_page: OpenPage) -> None:
    text = "<img src=x onerror=\"document.title='owned'\"> \u202e reversed \u001b[31m red"
    page = open_with(
        open_page, server, f"console.log({json.dumps(text)});\nthrow new Error({json.dumps(text)});"
    )
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("<img src=x")
    expect(page.get_by_role("alert")).to_contain_text("\\u{202e}")
    expect(page.get_by_role("log")).to_contain_text("\\u{1b}")
    assert page.locator("img[src=x]").count() == 0
    assert "owned" not in page.title()
