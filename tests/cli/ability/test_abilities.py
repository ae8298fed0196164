"""Tests of `hutch ability` as a process, from adding a user to running an ability, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.protocols.abilities.harness import MARK, PROFILE, TOKEN, FakeApi, ability
from tests.support.processes import hutch

ID = "twitter_get_user_profile"


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeApi]:
    with FakeApi() as serving:
        yield serving


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("abilities")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUTCH_HOME", str(home))
        yield home


@pytest.fixture
def bo(home: Path, request: pytest.FixtureRequest) -> str:
    """Adds a user whose name no other test uses, and returns the name."""
    name = f"bo-{abs(hash(request.node.nodeid))}"
    assert hutch("user", "add", name).returncode == 0
    return name


def add(user: str, value: object, *more: str) -> tuple[int, str, str]:
    done = hutch("ability", "add", "--user", user, "-", *more, input=json.dumps(value))
    return done.returncode, done.stdout, done.stderr


def test_added_ability_names_the_kinds_of_its_missing_credentials(bo: str, tmp_path: Path) -> None:
    command = "curl 'https://api.example/orders?api_key=sk-live-0123456789abcdef'"
    imported = hutch("ability", "import", "--curl", command, "--id", "orders")
    file = tmp_path / "orders.json"
    file.write_text(imported.stdout)
    added = hutch("ability", "add", "--user", bo, str(file))
    assert f"`hutch credential set --user {bo} --kind query api.example::api_key`" in added.stderr
    assert "a credential that is not a header" not in added.stderr
    assert hutch("ability", "remove", "--user", bo, "orders").returncode == 0


def test_ability_is_added_run_and_removed(bo: str, upstream: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "ability.json"
    file.write_text(json.dumps(ability(upstream.url)))
    added = hutch("ability", "add", "--user", bo, str(file))
    assert (added.returncode, added.stdout) == (0, f"{ID}\n"), added.stderr
    stored = hutch("credential", "set", "--user", bo, "127.0.0.1::Authorization", input=TOKEN)
    assert stored.returncode == 0, stored.stderr

    run = ("ability", "run", "--user", bo, ID, "--egress-allow", f"127.0.0.1:{upstream.port}")
    params = ("--params", '{"username": "elonmusk"}')
    done = hutch(*run, *params)
    assert (done.returncode, json.loads(done.stdout)) == (0, PROFILE), done.stderr
    assert upstream.seen[-1]["authorization"] == TOKEN

    shorter = hutch(*run, *params, "--transform", "(data) => data.name")
    assert shorter.stdout == '"Elon Musk"\n'

    full = json.loads(hutch(*run, *params, "--json").stdout)
    assert (full["success"], full["result"]["statusCode"]) == (True, 200)

    again = hutch("ability", "add", "--user", bo, str(file))
    wrong = hutch(*run)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "INVALID_REQUEST: params.username: is required" in wrong.stderr

    removed = hutch("ability", "remove", "--user", bo, ID)
    assert (removed.returncode, removed.stdout) == (0, f"removed {ID}\n")
    assert hutch("ability", "remove", "--user", bo, ID).returncode == 2
    # The note about a missing credential is shown only until the credential is set.
    assert f"hutch credential set --user {bo} 127.0.0.1::Authorization" in added.stderr
    assert "credential" not in again.stderr
    for each in (added, again, done, shorter, wrong, removed):
        assert MARK not in each.stdout + each.stderr
        assert TOKEN not in each.stdout + each.stderr


def test_list_and_show_omit_the_code(bo: str) -> None:
    assert add(bo, [ability(ability_id="one"), ability(ability_id="two", ability_name="Second")])[:2] == (
        0,
        "one\ntwo\n",
    )
    assert "version 2" in add(bo, ability(ability_id="one"))[2]
    listed = hutch("ability", "list", "--user", bo)
    assert "Second" in listed.stdout
    shown = hutch("ability", "show", "--user", bo, "one")
    assert "127.0.0.1::Authorization" in shown.stdout
    as_json = hutch("ability", "list", "--user", bo, "--json")
    assert [(each["ability_id"], each["version"]) for each in json.loads(as_json.stdout)] == [
        ("one", 2),
        ("two", 1),
    ]
    one = hutch("ability", "show", "--user", bo, "one", "--json")
    assert json.loads(one.stdout)["ability_id"] == "one"
    for each in (listed, shown, as_json, one):
        assert each.returncode == 0, each.stderr
        assert MARK not in each.stdout
        assert "static-value-of-a-header" not in each.stdout
    for name in ("one", "two"):
        assert hutch("ability", "remove", "--user", bo, name).returncode == 0
    assert f"{bo} has no abilities" in hutch("ability", "list", "--user", bo).stderr


def test_all_problems_are_printed_one_per_line_and_nothing_is_stored(bo: str) -> None:
    code, out, err = add(bo, [ability(ability_id="fine"), {"ability_id": "a b"}])
    assert (code, out) == (2, "")
    assert [line.partition(": expected")[0] for line in err.splitlines()] == [
        "hutch: stdin: [1].ability_id",
        "hutch: stdin: [1].service_name",
        "hutch: stdin: [1].wrapper_code",
    ]
    assert json.loads(hutch("ability", "list", "--user", bo, "--json").stdout) == []


def test_code_can_be_in_a_separate_file(bo: str, tmp_path: Path) -> None:
    code = tmp_path / "wrapper.js"
    code.write_text(
        f"// {MARK}\nexport const wrapper = () => {{\n  throw new Error('from the wrapper')\n}}\n"
    )
    definition = {"ability_id": "from_files", "service_name": "shop", "dynamic_header_keys": ["Cookie"]}
    status, out, err = add(bo, definition, "--code", str(code))
    assert (status, out) == (0, "from_files\n")
    assert "Cookie has no host: write HOST::Cookie" in err
    status, _, err = add(bo, {**definition, "wrapper_code": "x"}, "--code", str(code))
    assert (status, "without a wrapper_code of its own" in err) == (2, True)
    status, _, err = add(bo, [definition], "--code", str(code))
    assert (status, "expected one ability" in err) == (2, True)

    assert add(bo, {**definition, "dynamic_header_keys": []}, "--code", str(code))[0] == 0
    failed = hutch("ability", "run", "--user", bo, "from_files")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "hutch: WRAPPER_ERROR: line 3: from the wrapper\n"


def test_error_response_of_the_api_is_printed(bo: str, upstream: FakeApi) -> None:
    code = f"export const wrapper = () => fetch('{upstream.url}/users/unknown')"
    assert add(bo, {"ability_id": "asks", "service_name": "x", "wrapper_code": code})[0] == 0
    run = ("ability", "run", "--user", bo, "asks")
    refused = hutch(*run)
    assert "EGRESS_REFUSED: " in refused.stderr
    assert "--egress-allow HOST:PORT allows this address" in refused.stderr
    failed = hutch(*run, "--egress-allow", f"127.0.0.1:{upstream.port}")
    assert "UPSTREAM_ERROR: The API returned 404 Not Found" in failed.stderr
    assert 'response body: {"message":"no such user"}' in failed.stderr


def test_failed_transform_is_reported_beside_the_body(bo: str) -> None:
    code = "export const wrapper = () => Response.json(1)"
    assert add(bo, {"ability_id": "one", "service_name": "x", "wrapper_code": code})[0] == 0
    done = hutch("ability", "run", "--user", bo, "one", "--transform", "data.name")
    assert json.loads(done.stdout)["_original_data"] == 1
    assert done.stderr == "hutch: the transform failed: data is not defined\n"


def test_json_syntax_error_is_reported_with_its_position(bo: str) -> None:
    broken = hutch("ability", "add", "--user", bo, "-", input='{"ability_id": "x",\n "wrapper_code": "a\nb"}')
    assert broken.stderr == (
        "hutch: stdin: line 2, column 20: write line breaks in a string as \\n, "
        "or put the code in a file for --code\n"
    )
    missing = hutch("ability", "add", "--user", bo, "-", input='{"ability_id": "x"\n "wrapper_code": "a"}')
    assert "stdin: line 2, column 2: expected an ability as JSON: malformed JSON: " in missing.stderr


@pytest.mark.parametrize("text", ["", "{", "[1,", "\udcff"])
def test_input_that_is_not_json_is_rejected(bo: str, text: str) -> None:
    given = text.encode("utf-8", "surrogateescape")
    done = hutch("ability", "add", "--user", bo, "-", input=given)
    assert done.returncode == 2
    assert "stdin: " in done.stderr


def test_unknown_files_and_users_are_reported(bo: str) -> None:
    missing = hutch("ability", "add", "--user", bo, "nowhere.json")
    assert missing.returncode == 2
    assert "nowhere.json: cannot be read" in missing.stderr
    for command in (("list",), ("show", "x"), ("remove", "x"), ("run", "x")):
        unknown = hutch("ability", *command, "--user", "unknown")
        assert unknown.returncode == 2, command
        assert "there is no 'unknown'" in unknown.stderr


def test_unknown_abilities_are_reported(bo: str) -> None:
    shown = hutch("ability", "show", "--user", bo, "nothing")
    assert shown.returncode == 2
    assert f"hutch ability list --user {bo}" in shown.stderr
    run = hutch("ability", "run", "--user", bo, "nothing")
    assert run.returncode == 1
    assert "NOT_FOUND: Ability not found: nothing" in run.stderr
    assert f"hutch ability list --user {bo}" in run.stderr


def test_shared_abilities_are_listed_for_all_users(bo: str) -> None:
    ann = f"ann-of-{bo}"
    assert hutch("user", "add", ann).returncode == 0
    code, _, err = add(bo, ability(ability_id="everybodys"), "--shared")
    assert (code, "shared" in err) == (0, True)
    listed = json.loads(hutch("ability", "list", "--user", ann, "--json").stdout)
    assert [(each["ability_id"], each["own"], each["shared"]) for each in listed] == [
        ("everybodys", False, True)
    ]
    assert hutch("ability", "remove", "--user", ann, "everybodys").returncode == 2
    assert hutch("ability", "remove", "--user", bo, "everybodys").returncode == 0


def test_control_characters_of_a_wrapper_are_escaped(bo: str) -> None:
    code = (
        "export async function wrapper() { console.log('\\x1b]0;a\\x07\\n2'); throw new Error('\\x1b[2Jb') }"
    )
    add(bo, ability(ability_id="rude", wrapper_code=code, dynamic_header_keys=[], input_schema=None))
    done = hutch("ability", "run", "--user", bo, "rude")
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "\\u001b]0;a\\u0007\n2\n" in done.stderr
    assert "WRAPPER_ERROR: line 1: \\u001b[2Jb" in done.stderr


def test_trace_prints_the_requests_without_queries_and_secrets(bo: str, upstream: FakeApi) -> None:
    code = (
        "export const wrapper = async () => { await fetch('UPSTREAM/users/nobody?secret=query');"
        " return fetch('UPSTREAM/users/elonmusk') }"
    ).replace("UPSTREAM", upstream.url)
    assert add(bo, ability(upstream.url, wrapper_code=code, input_schema=None))[0] == 0
    assert hutch("credential", "set", "--user", bo, "127.0.0.1::Authorization", input=TOKEN).returncode == 0
    run = ("ability", "run", "--user", bo, ID, "--egress-allow", f"127.0.0.1:{upstream.port}")
    traced = hutch(*run, "--trace")
    assert (traced.returncode, json.loads(traced.stdout)) == (0, PROFILE), traced.stderr
    first, second = (line.split() for line in traced.stderr.splitlines()[:2])
    host = f"127.0.0.1:{upstream.port}"
    assert (first[:4], first[5]) == (["GET", host, "/users/nobody", "404"], "ms")
    assert second[:4] == ["GET", host, "/users/elonmusk", "200"]
    assert "query" not in traced.stderr
    assert TOKEN not in traced.stderr
    assert "/users/" not in hutch(*run).stderr


def test_versions_are_listed_compared_run_and_restored(bo: str) -> None:
    def version(text: str, **fields: object) -> object:
        code = f"// {MARK}\nexport const wrapper = () => '{text}'"
        return ability(wrapper_code=code, dynamic_header_keys=[], input_schema=None, **fields)

    assert add(bo, version("one"))[0] == 0
    assert add(bo, version("two", description="The second."))[0] == 0
    listed = json.loads(hutch("ability", "versions", "--user", bo, ID, "--json").stdout)
    assert [row["version"] for row in listed] == [2, 1]

    compared = hutch("ability", "diff", "--user", bo, ID, "1")
    assert "wrapper_code: changed, 1 lines added, 1 removed" in compared.stdout
    assert "description: Finds a user of Twitter by name. → The second." in compared.stdout
    assert MARK not in compared.stdout

    run = ("ability", "run", "--user", bo, ID)
    assert [hutch(*run, *more).stdout for more in ((), ("--version", "1"))] == ['"two"\n', '"one"\n']
    unknown = hutch(*run, "--version", "7")
    assert (unknown.returncode, "NOT_FOUND" in unknown.stderr) == (1, True)

    restored = hutch("ability", "restore", "--user", bo, ID, "1")
    assert restored.stdout == f"restored version 1 of {ID} as version 3\n", restored.stderr
    assert hutch(*run).stdout == '"one"\n'
    assert "no differences" in hutch("ability", "diff", "--user", bo, ID, "1", "3").stdout
    assert hutch("ability", "restore", "--user", bo, ID, "9").returncode == 2


def test_missing_credential_is_named_in_a_command(bo: str) -> None:
    key = "127.0.0.1::X-`id`"
    assert add(bo, ability(dynamic_header_keys=[key], input_schema=None))[0] == 0
    done = hutch("ability", "run", "--user", bo, ID)
    assert f"`hutch credential set --user {bo} '{key}'` stores it" in done.stderr
    assert "--kind cookie, auth_token, query or body" in done.stderr
    full = json.loads(hutch("ability", "run", "--user", bo, ID, "--json").stdout)
    assert full["missingCredentials"] == [key]
    definition = ability(dynamic_header_keys=[key], input_schema=None, credential_kinds={key: "query"})
    assert add(bo, definition)[0] == 0
    done = hutch("ability", "run", "--user", bo, ID)
    assert f"`hutch credential set --user {bo} --kind query '{key}'` stores it" in done.stderr
    assert "a credential that is not a header" not in done.stderr
    unknown = hutch("ability", "run", "--user", bo, ID, "--version", "9")
    assert f"`hutch ability versions --user {bo} {ID}` lists its versions" in unknown.stderr


def test_missing_code_names_the_option_for_a_file(bo: str) -> None:
    code, _, stderr = add(bo, {"ability_id": "x", "service_name": "y"})
    assert code == 2
    assert "--code FILE.js" in stderr


def test_show_prints_each_field_once(bo: str) -> None:
    add(bo, ability())
    names = [line.split()[0] for line in hutch("ability", "show", "--user", bo, ID).stdout.splitlines()]
    assert "ability_id" in names
    assert not [name for name in names if not name.islower()]


def test_login_obtains_the_credential_and_is_traced(bo: str, upstream: FakeApi) -> None:
    wrapper = f"export const wrapper = () => fetch('{upstream.url}/users/elonmusk')"
    login = ability(
        ability_id="log_in",
        wrapper_code=wrapper,
        dynamic_header_keys=[],
        requires_dynamic_headers=False,
        input_schema=None,
        produces={"127.0.0.1::X-Name": "body.name"},
    )
    fields = {"dynamic_header_keys": ["127.0.0.1::X-Name"], "dependency_order": ["log_in"]}
    add(bo, login)
    _, _, stderr = add(bo, ability(wrapper_code=wrapper, input_schema=None, **fields))
    assert "log_in obtains 127.0.0.1::X-Name when it is needed" in stderr
    assert "credential set" not in stderr
    allowed = ("--egress-allow", f"127.0.0.1:{upstream.port}")
    traced = hutch("ability", "run", "--user", bo, ID, "--trace", *allowed)
    assert traced.returncode == 0, traced.stderr
    assert traced.stderr.count(" /users/elonmusk 200 ") == 2
    assert upstream.seen[-1]["x-name"] == "Elon Musk"
