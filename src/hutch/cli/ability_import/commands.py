"""`hutch ability import`: prints definitions, the credentials that they need, and the next commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from hutch.cli.ability_import.models import (
    ImportedAbility,
    ImportResult,
    NeededCredential,
    example_params,
)
from hutch.cli.support.arguments import read_text
from hutch.cli.support.console import print_json_value, print_note
from hutch.errors import InvalidInput
from hutch.protocols.abilities.definition import parse_definition
from hutch.text import cut


def import_curl(command: str, ability_id: str | None) -> int:
    """Prints the definition of an ability that makes the request of a curl command."""
    from hutch.cli.ability_import import curl

    imported = curl.import_curl(read_text(None) if command == "-" else command, ability_id)
    parse_definition(imported.definition)
    return _print_import("--curl", ImportResult([imported]))


def import_har(file: Path) -> int:
    """Prints the definitions of abilities that make the requests of a HAR file."""
    from hutch.cli.ability_import import har

    return _print_import("--har", har.import_har(read_text(file, max_bytes=har.MAX_HAR_BYTES)))


def import_openapi(source: str, operations: Sequence[str], server: str | None) -> int:
    """Prints the definitions of abilities for the operations of an OpenAPI document."""
    from hutch.cli.ability_import import openapi
    from hutch.cli.ability_import.openapi_document import load_document

    return _print_import("--openapi", openapi.import_openapi(load_document(source), operations, server))


def _print_import(option: str, result: ImportResult) -> int:
    """Prints the definitions to stdout, and needed credentials and the next commands to stderr."""
    for note in result.notes:
        print_note(note)
    if not result.abilities:
        raise InvalidInput(option, "it contains nothing that can become an ability.")
    definitions = [ability.definition for ability in result.abilities]
    print_json_value(definitions[0] if len(definitions) == 1 else definitions, indent=2)
    ids = [ability.ability_id for ability in result.abilities]
    made = f"made {len(ids)} abilities: {', '.join(ids)}" if len(ids) > 1 else f"made the ability {ids[0]}"
    print_note(cut(made, 500))
    needed: dict[NeededCredential, list[str]] = {}
    for ability in result.abilities:
        for credential in ability.credentials:
            needed.setdefault(credential, []).append(ability.ability_id)
    for credential, users in needed.items():
        # Quote the names, because they come from the document and people paste this command into a shell.
        command = f"hutch credential set --user NAME --kind {credential.kind} {shlex.quote(credential.key)}"
        hint = f" (enter {credential.hint})" if credential.hint else ""
        who = users[0] if len(users) == 1 else f"{users[0]} and {len(users) - 1} more"
        print_note(f"{who}: needs a credential: `{command}`{hint}")
    print_note(
        "next: save the output as abilities.json and run `hutch ability add --user NAME abilities.json`"
    )
    print_note(f"then: `{_first_run(result.abilities)}`")
    return 0


def _first_run(abilities: Sequence[ImportedAbility]) -> str:
    """Returns the command that runs the ability with the fewest required parameters."""
    ability = min(abilities, key=lambda each: len(each.definition["input_schema"].get("required", ())))
    command = ["hutch", "ability", "run", "--user", "NAME", ability.ability_id]
    if params := example_params(ability.definition):
        command += ["--params", json.dumps(params, ensure_ascii=False)]
    # Abilities may use http only for addresses that are allowed, so allow this one.
    if ability.http_address is not None:
        command += ["--egress-allow", ability.http_address]
    return shlex.join(command)
