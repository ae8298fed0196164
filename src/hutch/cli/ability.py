"""`hutch ability`: API wrappers by hand. Their code goes in and never comes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch import settings as settings_module
from hutch.cli.arguments import params_of, text_of
from hutch.cli.opened import user_named, with_store
from hutch.cli.output import print_json
from hutch.cli.table import print_facts, print_note, print_table, since
from hutch.doors.abilities import documents, dynamic
from hutch.doors.abilities.documents import Document
from hutch.errors import InvalidAbility, InvalidInput
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value
from hutch.store.rows import Ability, Credential
from hutch.store.store import Store
from hutch.vault.credentials import Secret

if TYPE_CHECKING:
    from hutch.doors.abilities.execute import Answer
    from hutch.settings import Settings


def add_abilities(user: str, file: Path | None, *, code: Path | None, shared: bool) -> int:
    """All of them, or none if anything is wrong with any. `code` has what one has no `wrapper_code` for."""
    try:
        found = _read(file, code)
    except InvalidAbility as error:
        for problem in error.problems:
            print_note(problem)
        return 2

    async def put(store: Store) -> tuple[list[int], list[Credential]]:
        owner = await user_named(store, user)
        rows = [documents.as_row(each, owner.id, shared=shared) for each in found]
        return [await store.abilities.put(row) for row in rows], await store.credentials.list(owner.id)

    versions, credentials = with_store(put)
    for document, version in zip(found, versions, strict=True):
        print(document.ability_id)
        print_note(
            f"{document.ability_id} is kept for {user}, version {version}{', shared' if shared else ''}"
        )
        for note in _lacking(document, credentials, user):
            print_note(note)
    return 0


_SET = "`hutch credential set --user {user} {name}`"


def _lacking(document: Document, credentials: Sequence[Credential], user: str) -> Iterator[str]:
    """What is to be done before it can run."""
    wanted = dynamic.needed(document)
    for key in dynamic.resolve(wanted, [Secret(each, "") for each in credentials]).missing:
        if key.host is None:
            yield f"nothing can be kept for {key.text}: write HOST::{key.name}, or a host as service_name"
        else:
            yield f"it needs a credential: {_SET.format(user=user, name=f'{key.host}::{key.name}')}"


def _read(file: Path | None, code: Path | None) -> list[Document]:
    """Raises InvalidAbility with all that is wrong with any."""
    where = "stdin" if file is None else str(file)
    text = text_of(file)
    try:
        value = decode_value(text.encode())
    except NotJsonSafe as error:
        raise InvalidAbility([_no_json(where, text, error)]) from None
    several = isinstance(value, list)
    if code is not None:
        if not isinstance(value, dict) or value.get("wrapper_code") is not None:
            expected = "expected one ability that has no wrapper_code of its own"
            raise InvalidAbility([f"{where}: with --code, {expected}"])
        value["wrapper_code"] = text_of(code)
    found, problems = [], []
    most = settings_module.load().max_code_bytes
    for at, each in enumerate(value if several else [value]):
        try:
            found.append(documents.read(each, most_code=most))
        except InvalidAbility as error:
            problems += [f"[{at}].{problem}" if several else problem for problem in error.problems]
    if problems:
        raise InvalidAbility([f"{where}: {problem}" for problem in problems])
    return found


def _no_json(where: str, text: str, error: NotJsonSafe) -> str:
    """Where in the text it ends to be JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        where = f"{where}: line {fault.lineno}, column {fault.colno}"
        if fault.msg.startswith("Invalid control character"):
            return f"{where}: a line break in a string is written \\n; or keep the code in a file, for --code"
    except (ValueError, RecursionError):
        pass
    return f"{where}: expected an ability as JSON: {error}"


def list_abilities(user: str, *, as_json: bool) -> int:
    async def listed(store: Store) -> tuple[str, list[Ability]]:
        owner = await user_named(store, user)
        return owner.id, await store.abilities.list(owner.id, shared=True)

    owner_id, found = with_store(listed)
    if as_json:
        from hutch.doors.abilities.answers import ability

        print_json(encode_value([ability(each, owner_id) for each in found]))
    elif found:
        heads = ("ID", "NAME", "SERVICE", "VERSION", "WHOSE", "CHANGED")
        print_table(heads, [_line(each, user if each.owner_id == owner_id else "shared") for each in found])
    else:
        print_note(f"{user} has no abilities; `hutch ability add --user {user} FILE.json` keeps one")
    return 0


def _line(row: Ability, whose: str) -> Sequence[str]:
    return row.ability_id, row.name, row.service_name, str(row.version), whose, since(row.updated_at)


def show_ability(user: str, ability_id: str, *, as_json: bool) -> int:
    from hutch.doors.abilities.answers import ability

    async def found(store: Store) -> tuple[str, Ability | None]:
        owner = await user_named(store, user)
        return owner.id, await store.abilities.get(ability_id, owner.id)

    owner_id, row = with_store(found)
    if row is None:
        raise _unknown(user, ability_id)
    told = ability(row, owner_id)
    if as_json:
        print_json(encode_value(told))
    else:
        print_facts([(name, _shown(value)) for name, value in told.items() if value not in (None, [], "")])
    return 0


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return value if isinstance(value, str) else encode_value(value).decode()


def remove_ability(user: str, ability_id: str) -> int:
    async def remove(store: Store) -> bool:
        owner = await user_named(store, user)
        return await store.abilities.remove(ability_id, owner.id)

    if not with_store(remove):
        raise _unknown(user, ability_id)
    print(f"removed {ability_id}")
    return 0


def run_ability(
    user: str,
    ability_id: str,
    *,
    params: str | None,
    transform: str | None,
    egress_allow: Sequence[str],
    as_json: bool,
) -> int:
    """The command's exit code."""
    from hutch.cli import loop
    from hutch.cli.alone import ALONE
    from hutch.cli.asking import printable
    from hutch.egress import policy

    settings = settings_module.load({**ALONE, "egress_allow": tuple(egress_allow) or None})
    policy.check(settings)
    answer = loop.run(_run(settings, user, ability_id, params_of(params), transform))
    for line in "\n".join(answer.logs).splitlines():
        print(printable(line), file=sys.stderr)
    body = answer.body
    result = body.get("result", {})
    if as_json:
        print_json(encode_value(body))
    elif body.get("success") is True:
        print_json(encode_value(result["body"]))
        if transform and isinstance(result["body"], dict) and "_transform_error" in result["body"]:
            print_note(printable(f"the transform failed: {result['body']['_transform_error']}"))
    else:
        line = f"line {body['errorLine']}: " if "errorLine" in body else ""
        print_note(printable(f"{body['errorCode']}: {line}{body['error']}"))
        if (remedy := _remedy(user, body["errorCode"], body["error"])) is not None:
            print_note(remedy)
        if "body" in result:
            print_note(f"it said: {encode_value(result['body']).decode()[:_MOST_SAID]}")
    return 0 if body.get("success") is True else 1


_MOST_SAID = 2_000


def _remedy(user: str, code: str, error: str) -> str | None:
    """What to do next, where that is a command of ours."""
    match code:
        case "NOT_FOUND":
            return f"`hutch ability list --user {user}` has all"
        case "MISSING_CREDENTIALS":
            return f"{_SET.format(user=user, name='DOMAIN::NAME')} keeps one"
        case "EGRESS_REFUSED" if "egress_allow" in error:
            return "--egress-allow HOST:PORT allows it for this run"
    return None


async def _run(
    settings: Settings, user: str, ability_id: str, params: dict[str, Any], transform: str | None
) -> Answer:
    from hutch.cli.alone import started

    async with started(settings) as app:
        owner = await user_named(await app.keeping.store(), user)
        abilities = await app.keeping.abilities()
        return await abilities.execute(owner, ability_id, params, transform, door="cli")


def _unknown(user: str, ability_id: str) -> InvalidInput:
    remedy = f"`hutch ability list --user {user}` has all."
    return InvalidInput("ID", f"{user} has no ability {ability_id!r}.", remedy=remedy)
