"""Abilities by hand, from a first user to a first run, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doors.abilities.towns import MARK, PROFILE, TOKEN, Upstream, ability
from tests.processes import hutch

ID = "twitter_get_user_profile"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as serving:
        yield serving


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("abilities")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUTCH_HOME", str(home))
        yield home


@pytest.fixture
def bo(home: Path, request: pytest.FixtureRequest) -> str:
    """The name of a user of this test's own."""
    name = f"bo-{abs(hash(request.node.nodeid))}"
    assert hutch("user", "add", name).returncode == 0
    return name


def add(user: str, value: object, *more: str) -> tuple[int, str, str]:
    done = hutch("ability", "add", "--user", user, "-", *more, input=json.dumps(value))
    return done.returncode, done.stdout, done.stderr


def test_an_ability_is_added_run_and_removed(bo: str, upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "ability.json"
    file.write_text(json.dumps(ability(upstream.url)))
    added = hutch("ability", "add", "--user", bo, str(file))
    assert (added.returncode, added.stdout) == (0, f"{ID}\n"), added.stderr
    kept = hutch("credential", "set", "--user", bo, "127.0.0.1::Authorization", input=TOKEN)
    assert kept.returncode == 0, kept.stderr

    run = ("ability", "run", "--user", bo, ID, "--egress-allow", f"127.0.0.1:{upstream.port}")
    params = ("--params", '{"username": "elonmusk"}')
    done = hutch(*run, *params)
    assert (done.returncode, json.loads(done.stdout)) == (0, PROFILE), done.stderr
    assert upstream.seen[-1]["authorization"] == TOKEN

    shorter = hutch(*run, *params, "--transform", "(data) => data.name")
    assert shorter.stdout == '"Elon Musk"\n'

    whole = json.loads(hutch(*run, *params, "--json").stdout)
    assert (whole["success"], whole["result"]["statusCode"]) == (True, 200)

    again = hutch("ability", "add", "--user", bo, str(file))
    wrong = hutch(*run)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "INVALID_REQUEST: params: " in wrong.stderr

    removed = hutch("ability", "remove", "--user", bo, ID)
    assert (removed.returncode, removed.stdout) == (0, f"removed {ID}\n")
    assert hutch("ability", "remove", "--user", bo, ID).returncode == 2
    # What is to be done first is told with it, and only for as long as it is to be done.
    assert f"hutch credential set --user {bo} 127.0.0.1::Authorization" in added.stderr
    assert "credential" not in again.stderr
    for each in (added, again, done, shorter, wrong, removed):
        assert MARK not in each.stdout + each.stderr
        assert TOKEN not in each.stdout + each.stderr


def test_lists_and_shows_without_code(bo: str) -> None:
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


def test_everything_that_is_wrong_is_told_a_line_each_and_nothing_is_kept(bo: str) -> None:
    code, out, err = add(bo, [ability(ability_id="fine"), {"ability_id": "a b"}])
    assert (code, out) == (2, "")
    assert [line.partition(": expected")[0] for line in err.splitlines()] == [
        "hutch: stdin: [1].ability_id",
        "hutch: stdin: [1].service_name",
        "hutch: stdin: [1].wrapper_code",
    ]
    assert json.loads(hutch("ability", "list", "--user", bo, "--json").stdout) == []


def test_the_code_may_be_in_a_file_of_its_own(bo: str, tmp_path: Path) -> None:
    code = tmp_path / "wrapper.js"
    code.write_text(f"// {MARK}\nexport const wrapper = () => {{\n  throw new Error('as it was told')\n}}\n")
    described = {"ability_id": "from_files", "service_name": "shop", "dynamic_header_keys": ["Cookie"]}
    status, out, err = add(bo, described, "--code", str(code))
    assert (status, out) == (0, "from_files\n")
    assert "nothing can be kept for Cookie: write HOST::Cookie" in err
    status, _, err = add(bo, {**described, "wrapper_code": "x"}, "--code", str(code))
    assert (status, "no wrapper_code of its own" in err) == (2, True)
    status, _, err = add(bo, [described], "--code", str(code))
    assert (status, "expected one ability" in err) == (2, True)

    assert add(bo, {**described, "dynamic_header_keys": []}, "--code", str(code))[0] == 0
    failed = hutch("ability", "run", "--user", bo, "from_files")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "hutch: WRAPPER_ERROR: line 3: as it was told\n"


def test_what_an_api_said_when_it_refused_is_told(bo: str, upstream: Upstream) -> None:
    code = f"export const wrapper = () => fetch('{upstream.url}/users/nobody')"
    assert add(bo, {"ability_id": "asks", "service_name": "x", "wrapper_code": code})[0] == 0
    run = ("ability", "run", "--user", bo, "asks")
    refused = hutch(*run)
    assert "EGRESS_REFUSED: " in refused.stderr
    assert "--egress-allow HOST:PORT allows it" in refused.stderr
    failed = hutch(*run, "--egress-allow", f"127.0.0.1:{upstream.port}")
    assert "UPSTREAM_ERROR: The API answered 404 Not Found" in failed.stderr
    assert 'it said: {"message":"no such user"}' in failed.stderr


def test_a_transform_that_fails_is_told_beside_the_body(bo: str) -> None:
    code = "export const wrapper = () => Response.json(1)"
    assert add(bo, {"ability_id": "one", "service_name": "x", "wrapper_code": code})[0] == 0
    done = hutch("ability", "run", "--user", bo, "one", "--transform", "data.name")
    assert json.loads(done.stdout)["_original_data"] == 1
    assert done.stderr == "hutch: the transform failed: data is not defined\n"


def test_where_a_file_is_no_json_is_told(bo: str) -> None:
    broken = hutch("ability", "add", "--user", bo, "-", input='{"ability_id": "x",\n "wrapper_code": "a\nb"}')
    assert broken.stderr == (
        "hutch: stdin: line 2, column 20: a line break in a string is written \\n; "
        "or keep the code in a file, for --code\n"
    )
    missing = hutch("ability", "add", "--user", bo, "-", input='{"ability_id": "x"\n "wrapper_code": "a"}')
    assert "stdin: line 2, column 2: expected an ability as JSON: malformed JSON: " in missing.stderr


@pytest.mark.parametrize("text", ["", "{", "[1,", "\udcff"])
def test_what_is_no_json_is_told(bo: str, text: str) -> None:
    given = text.encode("utf-8", "surrogateescape")
    done = hutch("ability", "add", "--user", bo, "-", input=given)
    assert done.returncode == 2
    assert "stdin: " in done.stderr


def test_files_and_users_that_are_not_there_are_told(bo: str) -> None:
    missing = hutch("ability", "add", "--user", bo, "nowhere.json")
    assert missing.returncode == 2
    assert "nowhere.json: cannot be read" in missing.stderr
    for command in (("list",), ("show", "x"), ("remove", "x"), ("run", "x")):
        unknown = hutch("ability", *command, "--user", "nobody")
        assert unknown.returncode == 2, command
        assert "there is no 'nobody'" in unknown.stderr


def test_unknown_abilities_are_told(bo: str) -> None:
    shown = hutch("ability", "show", "--user", bo, "nothing")
    assert shown.returncode == 2
    assert f"hutch ability list --user {bo}" in shown.stderr
    run = hutch("ability", "run", "--user", bo, "nothing")
    assert run.returncode == 1
    assert "NOT_FOUND: Ability not found: nothing" in run.stderr
    assert f"hutch ability list --user {bo}" in run.stderr


def test_shared_abilities_are_listed_for_all(bo: str) -> None:
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


def test_a_wrapper_has_no_say_over_the_terminal(bo: str) -> None:
    code = (
        "export async function wrapper() { console.log('\\x1b]0;a\\x07\\n2'); throw new Error('\\x1b[2Jb') }"
    )
    add(bo, ability(ability_id="rude", wrapper_code=code, dynamic_header_keys=[], input_schema=None))
    done = hutch("ability", "run", "--user", bo, "rude")
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "\\u001b]0;a\\u0007\n2\n" in done.stderr
    assert "WRAPPER_ERROR: line 1: \\u001b[2Jb" in done.stderr
