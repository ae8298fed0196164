"""Makes an ability from a curl command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import msgspec

from hutch.cli.ability_import.models import ImportedAbility
from hutch.cli.ability_import.recorded import (
    JSON,
    RecordedRequest,
    RequestImporter,
    looks_secret,
    parse_url,
)
from hutch.errors import InvalidInput

_OPTION = "--curl"
# Options of curl that are ignored, because they do not change the request that an ability makes.
_IGNORED_FLAGS = frozenset(
    [
        "-s",
        "--silent",
        "-S",
        "--show-error",
        "-L",
        "--location",
        "-v",
        "--verbose",
        "-i",
        "--include",
        "--compressed",
        "-f",
        "--fail",
        "-g",
        "--globoff",
        "-k",
        "--insecure",
        "--http1.1",
        "--http2",
        "-#",
    ]
)
_IGNORED_WITH_VALUE = frozenset(("-o", "--output", "-m", "--max-time", "--connect-timeout", "--retry"))
_DATA = frozenset(
    ("-d", "--data", "--data-raw", "--data-ascii", "--data-binary", "--json", "--data-urlencode")
)


class _Command(msgspec.Struct):
    request: RecordedRequest
    data: list[str] = []
    is_get: bool = False


def import_curl(command: str, ability_id: str | None = None) -> ImportedAbility:
    """Converts a curl command. Raises InvalidInput, whose message contains no values of the command."""
    parsed = _parse(command)
    request = parsed.request
    parts = parse_url(_OPTION, request.url)
    segments = (parts.path or "/").split("/")[1:]
    if any(looks_secret(segment) for segment in segments):
        raise InvalidInput(_OPTION, "the path seems to contain a secret, which abilities cannot add.")
    data = "&".join(parsed.data) if parsed.data else None
    query = parts.query
    if parsed.is_get and data is not None:
        query, data = "&".join(filter(None, (query, data))), None
    request.body = data
    importer = RequestImporter(_OPTION, parts, segments)
    importer.add(request, query)
    return importer.ability(request.method or ("GET" if data is None else "POST"), ability_id)


def _parse(command: str) -> _Command:
    try:
        words = iter(shlex.split(command.replace("\\\n", " ").replace("\\\r\n", " ")))
    except ValueError as error:
        raise InvalidInput(_OPTION, f"cannot be parsed: {error}.") from None
    if next(words, "") != "curl":
        raise InvalidInput(_OPTION, "expected a command that starts with `curl`.")
    request = RecordedRequest()
    parsed = _Command(request)
    for word in _separate_values(words):
        option, _, value = word.partition("\0")
        match option:
            case "":
                request.url = value
            case "-X" | "--request":
                request.method = value.upper()
            case "-H" | "--header":
                name, _, text = value.partition(":")
                request.headers.append((name.strip(), text.strip()))
            case "-b" | "--cookie":
                request.headers.append(("Cookie", value))
            case "-A" | "--user-agent":
                request.headers.append(("User-Agent", value))
            case "-e" | "--referer":
                request.headers.append(("Referer", value))
            case "-u" | "--user":
                request.has_user = True
            case "-G" | "--get":
                parsed.is_get = True
            case "-I" | "--head":
                request.method = "HEAD"
            case _:
                if value.startswith("@") and option != "--data-raw":
                    raise InvalidInput(_OPTION, f"{option} reads a file; write the data itself.")
                parsed.data.append(value)
                if option == "--json":
                    request.headers += [("Content-Type", JSON), ("Accept", JSON)]
    return parsed


_WITH_VALUE = _DATA.union(
    [
        "-X",
        "--request",
        "-H",
        "--header",
        "-b",
        "--cookie",
        "-A",
        "--user-agent",
        "-e",
        "--referer",
        "-u",
        "--user",
        "--url",
    ]
)


def _separate_values(words: Iterator[str]) -> Iterator[str]:
    """Yields `option NUL value` for each option that is not ignored, and `NUL value` for a URL."""
    for word in words:
        option, value = word, None
        if word.startswith("--") and "=" in word:
            option, _, value = word.partition("=")
        elif len(word) > 2 and word[0] == "-" and word[1] != "-" and word[:2] in _WITH_VALUE:
            option, value = word[:2], word[2:]
        if option in _WITH_VALUE or option in _IGNORED_WITH_VALUE:
            value = next(words, "") if value is None else value
            if option in _WITH_VALUE:
                yield f"{'' if option == '--url' else option}\0{value}"
        elif option in ("-G", "--get", "-I", "--head"):
            yield f"{option}\0"
        elif option.startswith("-"):
            if option not in _IGNORED_FLAGS and not re.fullmatch(r"-[sSLvifgk#]+", option):
                raise InvalidInput(_OPTION, f"the option {option[:40]} is not supported.")
        else:
            yield f"\0{word}"
