"""The documentation site: navigation, pages that are adapted from docs/, and pages that are generated from
the code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from docs.site.pages import DOCS, EXAMPLES_PAGE, ROOT, adapt, examples_page, slug, source_pages
from docs.site.reference import GENERATED, commands_page, errors_page, http_page, settings_page

from hutch import errors
from hutch.app.openapi import document
from hutch.cli.commands import hutch
from hutch.errors import HutchError
from hutch.settings import Settings


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """Returns every page of the site as Markdown."""
    pages = {page: adapt(path.read_text(), path, page) for page, path in source_pages().items()}
    return pages | {page: build() for page, build in GENERATED.items()} | {EXAMPLES_PAGE: examples_page()}


def without_code(text: str) -> str:
    text = re.sub(r"^ *(````?)\w*\n.*?^ *\1$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text: str) -> set[str]:
    return {
        slug(title)
        for title in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    }


def test_navigation_has_every_page(site: dict[str, str]) -> None:
    def pages(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for target in entry.values():
                if isinstance(target, str):
                    yield target
                else:
                    yield from pages(target)

    config = tomllib.loads((DOCS / "site/zensical.toml").read_text())
    assert sorted(pages(config["project"]["nav"])) == sorted(site)


def test_links_between_pages_of_the_site_are_valid(site: dict[str, str]) -> None:
    broken = []
    for page, text in site.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            name, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (DOCS / page).parent.joinpath(name).resolve() if name else DOCS / page
            found = target.relative_to(DOCS).as_posix()
            is_image = found.startswith("images/") and (DOCS / found).exists()
            if not is_image and (found not in site or (anchor and anchor not in anchors(site[found]))):
                broken.append(f"{page}: {link}")
    assert broken == []


def test_page_with_a_diagram_loads_mermaid_from_the_site() -> None:
    text = "# Title\n\nFor x.\n\n```mermaid\nflowchart LR\n```\n"
    assert '<script src="../assets/mermaid.min.js"></script>' in adapt(text, DOCS / "a.md", "how-to/a.md")
    assert "<script" not in adapt("# Title\n\nFor x.\n", DOCS / "a.md", "a.md")


def test_nested_lists_and_code_are_indented_by_four_spaces() -> None:
    text = "- one\n  more\n  - two\n\n  ```sh\n  a\n    b\n  ```\n\n```sh\n  kept\n```\n"
    expected = "- one\n    more\n    - two\n\n    ```sh\n    a\n      b\n    ```\n\n```sh\n  kept\n```\n"
    assert adapt(text, DOCS / "a.md", "a.md") == expected


def test_bar_in_code_of_a_table_needs_no_backslash() -> None:
    row = "| `a\\|b` | c |\n"
    assert adapt(row, DOCS / "a.md", "a.md") == "| <code>a&#124;b</code> | c |\n"


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../README.md", "../index.md"),
        ("../CHANGELOG.md", "../changelog.md"),
        ("../examples/deploy/Caddyfile", "../reference/examples.md#deploycaddyfile"),
        ("rep.md#lists", "../rep.md#lists"),
        ("https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_links_to_files_become_links_to_pages(link: str, expected: str) -> None:
    # Adapt a page of docs/ as if the page were one level deeper on the site. Then every link must change.
    assert adapt(f"[x]({link})", DOCS / "a.md", "how-to/a.md") == f"[x]({expected})\n"


def test_link_to_a_file_that_the_site_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="Makefile"):
        adapt("[x](../Makefile)", DOCS / "a.md", "a.md")


# --- generated pages ---


def test_commands_page_has_every_command_with_every_option() -> None:
    page = commands_page()

    def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
        for sub, command in group.commands.items():
            yield f"{name} {sub}", command
            if isinstance(command, click.Group):
                yield from commands(command, f"{name} {sub}")

    for name, command in commands(hutch, "hutch"):
        section = re.search(rf"^#+ {name}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
        if command.hidden:
            assert section is None
            continue
        assert section is not None, name
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in section[1], (name, option.opts)


def test_settings_page_has_every_setting_with_a_meaning() -> None:
    rows = [line.split(" | ") for line in settings_page().splitlines() if line.startswith("| <a id=")]
    assert [re.findall(r"`(\w+)`", row[0])[0] for row in rows] == list(Settings.__struct_fields__)
    assert [row[0] for row in rows if len(row[-1].strip("| ")) < 3] == []
    assert any(row[1:3] == ["integer ≥ 0 ≤ 65535", "`4111`"] for row in rows)


def test_errors_page_has_every_error() -> None:
    page = errors_page()
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, HutchError) and each is not HutchError:
            assert f"| `{each.code}` | `{each.__name__}` |" in page


def test_http_page_has_every_operation() -> None:
    page = http_page()
    for path, item in document(Settings())["paths"].items():
        for method in item:
            assert f"### {method.upper()} {path}\n" in page


def test_examples_page_has_every_file() -> None:
    page = examples_page()
    files = [
        path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert [path.name for path in files if Path(path).read_text().rstrip() not in page] == []
