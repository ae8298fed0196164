"""Signing in with a link or a key, and the end of a session."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Route, expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, running_server

KEY = "operators-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    with running_server(HUTCH_API_KEY=KEY, HUTCH_HOME=home) as running:
        yield running


def test_link_signs_in_and_leaves_no_trace_in_the_address(guarded: ServeProcess, open_page: OpenPage) -> None:
    path = httpx2.post(guarded.url + "/console/links", headers=HEADERS).json()["path"]
    page = open_page(guarded.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert "sign-in" not in page.url
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("form", name="Sign in")).to_be_visible()


def test_link_pasted_into_the_form_signs_in_once(guarded: ServeProcess, open_page: OpenPage) -> None:
    path = httpx2.post(guarded.url + "/console/links", headers=HEADERS).json()["path"]
    page = open_page(guarded.url)
    expect(page.get_by_role("form", name="Sign in")).to_be_visible()
    page.goto(guarded.url + path)  # changes only the fragment, so the page is not loaded again
    expect(page.get_by_text("Runs, last minute")).to_be_visible()
    assert "sign-in" not in page.url
    page.get_by_role("button", name="Sign out").click()
    page.goto(guarded.url + path)
    form = page.get_by_role("form", name="Sign in")
    expect(form).to_contain_text("This link was used or has expired. Run `hutch console` for another one.")


def test_wrong_key_is_explained_and_the_right_one_works(guarded: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(guarded.url)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This API key is not known here.")
    expect(page.get_by_role("alert")).not_to_contain_text("Bearer")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("form", name="Sign in")).to_have_count(0)
    expect(page.get_by_text("Runs, last minute")).to_be_visible()


def test_user_sees_no_operators_views(guarded: ServeProcess, open_page: OpenPage) -> None:
    httpx2.post(guarded.url + "/console/users", json={"name": "bo"}, headers=HEADERS)
    key = httpx2.post(guarded.url + "/console/users/bo/keys", json={}, headers=HEADERS).json()["secret"]
    page = open_page(guarded.url)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Welcome, bo")).to_be_visible()
    navigation = page.get_by_role("navigation")
    expect(navigation.get_by_role("link", name="Runs", exact=True)).to_be_visible()
    for view in ("System", "Access", "Approvals"):
        expect(navigation.get_by_role("link", name=view, exact=True)).to_have_count(0)


def test_draft_survives_the_end_of_the_session(guarded: ServeProcess, open_page: OpenPage) -> None:
    path = httpx2.post(guarded.url + "/console/links", headers=HEADERS).json()["path"]
    page = open_page(guarded.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.goto(guarded.url + "/#/playground")
    editor = page.get_by_label("Code", exact=True)
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("return 'unsaved work'")
    page.context.clear_cookies()
    # Start the code with the keyboard. The type check, which needs a session, too, may already have opened
    # the sign-in form, and the form covers the button.
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("form", name="Sign in")).to_be_visible()
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("form", name="Sign in")).to_have_count(0)
    expect(editor).to_contain_text("unsaved work")


def test_late_refusal_of_an_earlier_session_does_not_end_the_new_one(
    guarded: ServeProcess, open_page: OpenPage
) -> None:
    path = httpx2.post(guarded.url + "/console/links", headers=HEADERS).json()["path"]
    page = open_page(guarded.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.goto(guarded.url + "/#/playground")
    checks: list[Route] = []
    page.route("**/console/check", lambda route: checks.append(route))
    with page.expect_request("**/console/check"):
        page.get_by_label("Code", exact=True).click()
        page.keyboard.press("Control+a")
        page.keyboard.type("return 1")
    page.context.clear_cookies()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("form", name="Sign in")).to_be_visible()
    late = checks[-1]
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("form", name="Sign in")).to_have_count(0)
    with page.expect_response("**/console/check"):
        late.fulfill(status=401, json={"error": {"code": "unauthorized", "message": "Sign in."}})
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.get_by_role("form", name="Sign in")).to_have_count(0)
