"""`hutch ability`: manages and runs abilities. The code of abilities is never shown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch.cli.support.arguments import parse_params, read_text
from hutch.cli.support.console import (
    format_age_of,
    print_error,
    print_facts,
    print_json,
    print_line,
    print_message,
    print_note,
    print_table,
)
from hutch.cli.support.project import current_folder, load_project_settings
from hutch.cli.support.store import find_user, with_store
from hutch.errors import InvalidAbility, InvalidInput
from hutch.protocols.abilities.definition import (
    AbilityDefinition,
    decode_definition,
    definition_row,
    parse_definition,
)
from hutch.protocols.abilities.headers import required_keys, resolve_credentials
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value
from hutch.settings import load_settings
from hutch.store.models import Ability, Credential
from hutch.store.store import Store
from hutch.vault.credentials import Secret

if TYPE_CHECKING:
    from hutch.protocols.abilities.execute import AbilityResponse
    from hutch.settings import Settings


def add_abilities(user: str, file: Path | None, *, code: Path | None, shared: bool) -> int:
    """Stores all abilities of a file, or none if any is invalid. `code` is a file with the `wrapper_code`."""
    try:
        definitions = _read_definitions(file, code)
    except InvalidAbility as error:
        for problem in error.problems:
            print_note(problem)
        return 2

    async def put(store: Store) -> tuple[list[int], list[Credential], dict[str, str]]:
        owner = await find_user(store, user)
        rows = [definition_row(definition, owner.id, shared=shared) for definition in definitions]
        versions = [await store.abilities.put(row) for row in rows]
        credentials = await store.credentials.list(owner.id)
        return versions, credentials, await _produced_keys(store, owner.id, definitions)

    versions, credentials, produced = with_store(put)
    has_unknown_kind = False
    for definition, version in zip(definitions, versions, strict=True):
        print_line(definition.ability_id)
        print_note(
            f"stored {definition.ability_id} for {user}, version {version}{', shared' if shared else ''}"
        )
        for note in _missing_credentials(definition, credentials, user, produced):
            has_unknown_kind = has_unknown_kind or ("credential set" in note and "--kind" not in note)
            print_note(note)
        if definition.produces:
            keys = ", ".join(produced.key for produced in definition.produces)
            print_note(f"each run stores credentials of the user who runs the ability: {keys}")
    if has_unknown_kind:
        print_note(_KIND_NOTE)
    return 0


_KIND_NOTE = "a credential that is not a header needs --kind cookie, auth_token, query or body"


def _set_command(user: str, key: str, kind: str | None = None) -> str:
    # Quote the key, because the author of the ability chose it and people paste this command into a shell.
    option = "" if kind is None else f"--kind {kind} "
    return f"`hutch credential set --user {shlex.quote(user)} {option}{shlex.quote(key)}`"


def _missing_credentials(
    definition: AbilityDefinition, credentials: Sequence[Credential], user: str, produced: Mapping[str, str]
) -> Iterator[str]:
    """Yields instructions for the credentials that the user still has to add before the ability can run.

    `produced` maps the credentials that logins obtain to the ids of the logins.
    """
    required = required_keys(definition)
    for key in resolve_credentials(required, [Secret(row, "") for row in credentials]).missing:
        text = f"{key.host}::{key.name}"
        if key.host is None:
            yield f"{key.text} has no host: write HOST::{key.name}, or a host as service_name"
        elif login := produced.get(text.lower()):
            yield f"{login} obtains {text} when it is needed"
        else:
            kind = definition.credential_kinds.get(key.text)
            yield f"the ability needs a credential: {_set_command(user, text, kind)}"


async def _produced_keys(
    store: Store, owner_id: str, definitions: Sequence[AbilityDefinition]
) -> dict[str, str]:
    """Maps credentials to the ids of the logins that obtain them. Includes the logins on which the
    definitions depend.
    """
    produced: dict[str, str] = {}
    for ability_id in dict.fromkeys(
        each for definition in definitions for each in definition.dependency_order
    ):
        row = await store.abilities.get(ability_id, owner_id)
        for each in decode_definition(row.document).produces if row is not None else ():
            produced[each.key.lower()] = ability_id
    return produced


def _read_definitions(file: Path | None, code: Path | None) -> list[AbilityDefinition]:
    """Reads definitions from a file. Raises InvalidAbility with the problems of all definitions."""
    source = "stdin" if file is None else str(file)
    text = read_text(file)
    try:
        value = decode_value(text.encode())
    except NotJsonSafe as error:
        raise InvalidAbility([_describe_json_error(source, text, error)]) from None
    is_list = isinstance(value, list)
    if code is not None:
        if not isinstance(value, dict) or value.get("wrapper_code") is not None:
            expected = "expected one ability without a wrapper_code of its own"
            raise InvalidAbility([f"{source}: with --code, {expected}"])
        value["wrapper_code"] = read_text(code)
    definitions, problems = [], []
    max_code_bytes = load_settings().max_code_bytes
    for index, item in enumerate(value if is_list else [value]):
        try:
            definitions.append(parse_definition(item, max_code_bytes=max_code_bytes))
        except InvalidAbility as error:
            problems += [f"[{index}].{problem}" if is_list else problem for problem in error.problems]
            if isinstance(item, dict) and item.get("wrapper_code") is None and not is_list:
                problems.append("the code may also be in a file: --code FILE.js")
    if problems:
        raise InvalidAbility([f"{source}: {problem}" for problem in problems])
    return definitions


def _describe_json_error(source: str, text: str, error: NotJsonSafe) -> str:
    """Describes a JSON error with the line and column of the first syntax error."""
    try:
        json.loads(text)
    except json.JSONDecodeError as syntax_error:
        source = f"{source}: line {syntax_error.lineno}, column {syntax_error.colno}"
        if syntax_error.msg.startswith("Invalid control character"):
            return f"{source}: write line breaks in a string as \\n, or put the code in a file for --code"
    except (ValueError, RecursionError):
        pass
    return f"{source}: expected an ability as JSON: {error}"


def list_abilities(user: str, *, as_json: bool) -> int:
    from hutch.protocols.abilities.responses import ability_json, shared_by

    async def load(store: Store) -> tuple[str, list[Ability], dict[str, str]]:
        owner = await find_user(store, user)
        rows = await store.abilities.list(owner.id, shared=True)
        return owner.id, rows, await shared_by(rows, owner.id, store)

    owner_id, rows, names = with_store(load)
    if as_json:
        print_json(encode_value([ability_json(row, owner_id, names.get(row.owner_id)) for row in rows]))
    elif rows:
        headers = ("ID", "NAME", "SERVICE", "VERSION", "OWNER", "CHANGED")
        owners = [user if row.owner_id == owner_id else names.get(row.owner_id, "shared") for row in rows]
        print_table(headers, [_ability_row(row, owner) for row, owner in zip(rows, owners, strict=True)])
    else:
        print_note(f"{user} has no abilities; `hutch ability add --user {user} FILE.json` stores one")
    return 0


def _ability_row(row: Ability, owner: str) -> Sequence[str]:
    return row.ability_id, row.name, row.service_name, str(row.version), owner, format_age_of(row.updated_at)


def show_ability(user: str, ability_id: str, *, as_json: bool) -> int:
    from hutch.protocols.abilities.responses import ability_json, shared_by

    async def load(store: Store) -> dict[str, Any]:
        owner = await find_user(store, user)
        row = await store.abilities.get(ability_id, owner.id)
        if row is None:
            raise _unknown_ability(user, ability_id)
        names = await shared_by([row], owner.id, store)
        return ability_json(row, owner.id, names.get(row.owner_id))

    ability = with_store(load)
    if as_json:
        print_json(encode_value(ability))
    else:
        print_facts(
            [
                (name, _format_value(value))
                for name, value in ability.items()
                # Leave out names in camel case. They are copies of other fields, for the public client.
                if name.islower() and value not in (None, [], {}, "")
            ]
        )
    return 0


def _format_value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else encode_value(value).decode()


def remove_ability(user: str, ability_id: str) -> int:
    async def remove(store: Store) -> bool:
        owner = await find_user(store, user)
        return await store.abilities.remove(ability_id, owner.id)

    if not with_store(remove):
        raise _unknown_ability(user, ability_id)
    print_line(f"removed {ability_id}")
    return 0


# --- versions ---


def list_versions(user: str, ability_id: str, *, as_json: bool) -> int:
    async def load(store: Store) -> list[Ability]:
        owner = await find_user(store, user)
        return await store.abilities.versions(ability_id, owner.id)

    rows = with_store(load)
    if not rows:
        raise _unknown_ability(user, ability_id)
    if as_json:
        fields = ("version", "name", "service_name", "shared", "updated_at")
        print_json(encode_value([{name: getattr(row, name) for name in fields} for row in rows]))
    else:
        table = [
            (str(row.version), row.name, row.service_name, format_age_of(row.updated_at)) for row in rows
        ]
        print_table(("VERSION", "NAME", "SERVICE", "CHANGED"), table)
    return 0


def compare_versions(user: str, ability_id: str, old: int, new: int | None) -> int:
    """Prints the fields that differ. Never prints code or values of static headers."""

    async def load(store: Store) -> tuple[Ability, Ability]:
        before = await _find_version(store, user, ability_id, old)
        return before, await _find_version(store, user, ability_id, new)

    before, after = with_store(load)
    print_line(f"{ability_id}: version {before.version} → {after.version}")
    old_fields, new_fields = _fields_of(before), _fields_of(after)
    changed = False
    for name in dict.fromkeys((*old_fields, *new_fields)):
        one, other = old_fields.get(name), new_fields.get(name)
        if one == other:
            continue
        changed = True
        if name == "wrapper_code":
            print_line(f"wrapper_code: {_count_changed_lines(str(one), str(other))}")
        elif name == "static_headers":
            print_line("static_headers: changed")
        else:
            print_line(f"{name}: {_format_value(one)} → {_format_value(other)}")
    if not changed:
        print_line("no differences")
    return 0


def restore_version(user: str, ability_id: str, version: int) -> int:
    """Stores an old version again, as the newest one."""

    async def restore(store: Store) -> int:
        row = await _find_version(store, user, ability_id, version)
        current = await _find_version(store, user, ability_id, None)
        definition = decode_definition(row.document)
        return await store.abilities.put(definition_row(definition, row.owner_id, shared=current.shared))

    print_line(f"restored version {version} of {ability_id} as version {with_store(restore)}")
    return 0


async def find_own_ability(store: Store, user: str, ability_id: str) -> Ability:
    """Returns an ability of the user. Raises InvalidInput if it is unknown or belongs to another user."""
    owner = await find_user(store, user)
    ability = await store.abilities.get(ability_id, owner.id)
    if ability is None or ability.owner_id != owner.id:
        raise _unknown_ability(user, ability_id)
    return ability


async def _find_version(store: Store, user: str, ability_id: str, version: int | None) -> Ability:
    """Returns a version of the user's own ability, by default the newest. Raises InvalidInput."""
    newest = await find_own_ability(store, user, ability_id)
    row = newest if version is None else await store.abilities.version(ability_id, newest.owner_id, version)
    if row is None:
        remedy = f"`hutch ability versions --user {user} {ability_id}` lists all."
        raise InvalidInput("VERSION", f"{ability_id} has no version {version}.", remedy=remedy)
    return row


def _fields_of(row: Ability) -> dict[str, Any]:
    fields = decode_value(row.document.encode())
    assert isinstance(fields, dict)
    return {**fields, "shared": row.shared}


def _count_changed_lines(one: str, other: str) -> str:
    import difflib

    lines = list(difflib.ndiff(one.splitlines(), other.splitlines()))
    added, removed = (sum(line.startswith(mark) for line in lines) for mark in ("+ ", "- "))
    return f"changed, {added} lines added, {removed} removed"


# --- running ---


def run_ability(
    user: str,
    ability_id: str,
    *,
    params: str | None,
    transform: str | None,
    egress_allow: Sequence[str],
    as_json: bool,
    trace: bool = False,
    version: int | None = None,
) -> int:
    from hutch.cli.support import event_loop
    from hutch.cli.support.event_loop import ONE_SHOT_SETTINGS
    from hutch.egress import policy

    flags = {**ONE_SHOT_SETTINGS, "egress_allow": tuple(egress_allow) or None}
    settings = load_project_settings(flags, current_folder())
    policy.check_settings(settings)
    response = event_loop.run_async(
        _run(settings, user, ability_id, parse_params(params), transform, version)
    )
    for line in "\n".join(response.logs).splitlines():
        print_message(line)
    if trace:
        for request in response.request_log:
            status = request.error if request.status is None else request.status
            print_message(f"{request.method} {request.host} {request.path} {status} {request.ms:.1f} ms")
        if not response.request_log:
            print_message("no requests")
    body = response.body
    result = body.get("result", {})
    if as_json:
        print_json(encode_value(body))
    elif body.get("success") is True:
        print_json(encode_value(result["body"]))
        for key in result.get("storedCredentials", ()):
            print_note(f"stored the credential {key} of {user}")
        if transform and isinstance(result["body"], dict) and "_transform_error" in result["body"]:
            print_note(f"the transform failed: {result['body']['_transform_error']}")
    else:
        line = f"line {body['errorLine']}: " if "errorLine" in body else ""
        print_error(f"{body['errorCode']}: {line}{body['error']}")
        for remedy in _remedies(user, ability_id, version, body):
            print_note(remedy)
        if "body" in result:
            print_note(f"response body: {encode_value(result['body']).decode()[:_MAX_BODY_CHARS]}")
    return 0 if body.get("success") is True else 1


_MAX_BODY_CHARS = 2_000


def _remedies(user: str, ability_id: str, version: int | None, body: Mapping[str, Any]) -> Iterator[str]:
    """Yields hints with commands that help after an error."""
    match body["errorCode"]:
        case "NOT_FOUND" if version is not None:
            yield f"`hutch ability versions --user {user} {ability_id}` lists its versions"
        case "NOT_FOUND":
            yield f"`hutch ability list --user {user}` lists all"
        case "MISSING_CREDENTIALS":
            kinds = body.get("credentialKinds", {})
            keys = [key for key in body["missingCredentials"] if "::" in key]
            for key in keys:
                yield f"{_set_command(user, key, kinds.get(key))} stores it"
            if any(key not in kinds for key in keys):
                yield _KIND_NOTE
    if body["errorCode"] != "NOT_FOUND" and "egress_allow" in body["error"]:
        yield "--egress-allow HOST:PORT allows this address for one run"


async def _run(
    settings: Settings,
    user: str,
    ability_id: str,
    params: dict[str, Any],
    transform: str | None,
    version: int | None,
) -> AbilityResponse:
    from hutch.cli.support.event_loop import open_app

    async with open_app(settings) as app:
        owner = await find_user(await app.storage.store(), user)
        abilities = await app.storage.abilities()
        return await abilities.execute(owner, ability_id, params, transform, protocol="cli", version=version)


def _unknown_ability(user: str, ability_id: str) -> InvalidInput:
    remedy = f"`hutch ability list --user {user}` lists all."
    return InvalidInput("ID", f"{user} has no ability {ability_id!r}.", remedy=remedy)
