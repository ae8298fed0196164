"""Package specs: npm's rules for names and versions, and the reasons for rejecting others."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.errors import InvalidPackage
from hutch.npm.package_spec import PackageSpec, parse_spec, parse_spec_argument


@pytest.mark.parametrize(
    "name",
    [
        *("zod", "a", "@tpmjs/tools-template-render", "lodash.merge", "7zip-bin", "some_name", "x" * 214),
        # npm allows these names only for packages that already exist.
        *("JSONStream", "crazy!", "a~b", "it's", "(b)", "@Scope/Name"),
    ],
)
def test_valid_name_is_unchanged(name: str) -> None:
    assert parse_spec(name) == PackageSpec(name, "latest")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (None, "expected a string, got null"),
        (7, "expected a string, got a number"),
        (True, "a boolean"),
        (["zod"], "an array"),
        ({}, "an object"),
        ("", "is empty"),
        ("x" * 215, "has 215 characters"),
        ("../evil", "path"),
        ("a/b", "repository"),
        ("https://example.com/x.tgz", "URL"),
        ("/etc/passwd", "path"),
        ("./x", "path"),
        (".hidden", "dot"),
        ("..", "dot"),
        ("a..b", "two dots"),
        ("_private", "begins with '_'"),
        ("-g", "begins with '-'"),
        ("--allow-scripts", "begins with '-'"),
        ("@/x", "lacks a part"),
        ("@scope/", "lacks a part"),
        ("@scope", "has '@'"),
        ("@scope/a/b", "has '/'"),
        ("@scope/..", "dot"),
        ("@../x", "dot"),
        ("npm:zod", "has ':'"),
        ("file:x", "has ':'"),
        ("zod@1", "has '@'"),
        (" zod", "has ' '"),
        ("zod ", "has ' '"),
        ("zo d", "has ' '"),
        ("zod\n", "U+000A"),
        ("zod\x00", "U+0000"),
        ("zod\t", "U+0009"),
        ("zоd", "U+043E"),  # noqa: RUF001 - a Cyrillic o
        ("zod\u200b", "U+200B"),
        ("zod\udc80", "U+DC80"),
        ("zod%2e", "has '%'"),
        ("$(id)", "has '$'"),
        ("a;b", "has ';'"),
        ("a`b", "has '`'"),
        ("a\\b", r"has '\\'"),
        ("node_modules", "reserved name"),
        ("Favicon.ico", "reserved name"),
        ("fs", "built-in module of Node"),
    ],
)
def test_invalid_name_is_rejected_with_field_and_reason(name: Any, why: str) -> None:
    with pytest.raises(InvalidPackage) as caught:
        parse_spec(name)
    assert caught.value.field == "packageName"
    assert why in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("version", "meant"),
    [
        (None, "latest"),
        ("latest", "latest"),
        ("1.2.3", "1.2.3"),
        ("v1.2.3", "1.2.3"),
        ("=1.2.3", "1.2.3"),
        ("1.2.3-beta.1", "1.2.3-beta.1"),
        ("1.2.3+build.5", "1.2.3"),
        *(
            (text, text)
            for text in ("^1", "~1.2", "1.x", "1", "*", ">=1 <2", "1 - 2", "^1 || ^2", ">=1.2.3-0")
        ),
        *((text, text) for text in ("next", "beta", "v17-lts", "4.x-latest", "canary_1")),
    ],
)
def test_valid_version_range_or_tag_is_normalized(version: Any, meant: str) -> None:
    assert parse_spec("zod", version).version == meant


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (1, "a number"),
        ("", "is empty"),
        ("1" * 201, "more than 200"),
        ("https://example.com/x.tgz", "has ':'"),
        ("git+ssh://git@example.com/x", "has ':'"),
        ("github:user/repo", "has ':'"),
        ("user/repo", "has '/'"),
        ("file:../x", "has ':'"),
        ("link:x", "has ':'"),
        ("workspace:*", "has ':'"),
        ("npm:other@1", "has ':'"),
        ("../../etc", "has '/'"),
        ("--allow-scripts", "not a version, range or tag"),
        ("-1", "not a version, range or tag"),
        ("1.2.3.4", "not a version, range or tag"),
        ("01.2.3", "not a version, range or tag"),
        ("1.2.3 next", "not a version, range or tag"),
        ("..", "not a version, range or tag"),
        (" 1.2.3", "spaces"),
        ("1.2.3 ", "spaces"),
        (">=1  <2", "spaces"),
        ("1.2.3\n", "U+000A"),
        ("1.2.3\x00", "U+0000"),
        ("\u00a01.2.3", "U+00A0"),
        ("１.2.3", "U+FF11"),  # noqa: RUF001 - a wide 1
        ("$(id)", "has '$'"),
        ("1;id", "has ';'"),
        ('1","x":"1', "has '\"'"),
    ],
)
def test_invalid_version_is_rejected_with_field_and_reason(version: Any, why: str) -> None:
    with pytest.raises(InvalidPackage) as caught:
        parse_spec("zod", version)
    assert caught.value.field == "version"
    assert why in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("zod", "zod", "latest"),
        ("zod@^4", "zod", "^4"),
        ("@tpmjs/x", "@tpmjs/x", "latest"),
        ("@tpmjs/x@0.1.0", "@tpmjs/x", "0.1.0"),
    ],
)
def test_argument_is_split_into_name_and_version(text: str, name: str, version: str) -> None:
    assert parse_spec_argument(text) == PackageSpec(name, version)


@pytest.mark.parametrize("text", ["", "@", "zod@", "@x@1", "a/b", "zod@npm:y", "zod@1@2"])
def test_invalid_argument_is_rejected(text: str) -> None:
    with pytest.raises(InvalidPackage):
        parse_spec_argument(text)
