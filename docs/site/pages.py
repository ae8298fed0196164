"""Writes the pages of the site: adapted pages of docs/, and generated pages."""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES_PAGE = "reference/examples.md"

# Files outside of docs/ that also become pages, with the path of each page.
_OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE_WITH_BAR = re.compile(r"`([^`]*\\\|[^`]*)`")
_FENCE = re.compile(r"^ *```")
# Added to pages with diagrams, because Zensical loads Mermaid from another server unless the page loads it
# itself.
_MERMAID = '<script src="{path}"></script>\n\n'
MERMAID_FILE = "assets/mermaid.min.js"


def source_pages() -> dict[str, Path]:
    """Returns the path of each page of the site, and the file from which the page is made."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    return pages | {page: ROOT / name for name, page in _OUTSIDE.items() if page not in pages}


def write_pages(out: Path) -> None:
    """Writes the pages of docs/ and the images to the folder `out`."""
    for page, path in source_pages().items():
        target = out / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(adapt(path.read_text(), path, page))
    shutil.copytree(DOCS / "images", out / "images")
    (out / "assets").mkdir()
    shutil.copyfile(ROOT / "src/hutch/console/web/icon.svg", out / "assets/icon.svg")


def adapt(text: str, path: Path, page: str) -> str:
    """Converts Markdown as code hosts read it to Markdown as Python-Markdown reads it."""
    lines = [_adapt_line(line, path, page) if prose else line for line, prose in _lines(text)]
    adapted = "\n".join(lines) + "\n"
    if "```mermaid" in text:
        script = _MERMAID.format(path=os.path.relpath(MERMAID_FILE, PurePosixPath(page).parent))
        adapted = adapted.replace("\n\n", f"\n\n{script}", 1)
    return adapted


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yields every line, and True if it is prose, False if it is code. A code block in a list gets the new
    indentation of its list item.
    """
    fence: str | None = None
    for line in text.splitlines():
        if _FENCE.match(line):
            indent = line[: len(line) - len(line.lstrip())]
            yield _indent(line), False
            fence = indent if fence is None else None
        elif fence is not None:
            yield (_indent(fence) + line.removeprefix(fence) if fence else line), False
        else:
            yield line, True


def _adapt_line(line: str, path: Path, page: str) -> str:
    if line.startswith("|"):
        line = _CODE_WITH_BAR.sub(_code_with_bar, line)
    return _LINK.sub(lambda link: link[1] + site_link(link[2], path, page) + link[3], _indent(line))


def _code_with_bar(code: re.Match[str]) -> str:
    """Converts inline code that contains an escaped `|` to HTML, because Python-Markdown would show the
    backslash.
    """
    text = html.escape(code[1], quote=False).replace("\\|", "&#124;")
    return f"<code>{text}</code>"


def _indent(line: str) -> str:
    """Changes the indentation of the contents of list items from two or three spaces per level to the four
    that Python-Markdown requires.
    """
    text = line.lstrip(" ")
    return " " * 4 * ((len(line) - len(text)) // 2) + text


def site_link(link: str, path: Path, page: str) -> str:
    """Returns the link on the site for a link in the file `path`."""
    name, _, anchor = link.partition("#")
    if not name or re.match(r"[a-z]+:", link):
        return link
    target = (path.parent / name).resolve().relative_to(ROOT).as_posix()
    if target.startswith("docs/"):
        found = target.removeprefix("docs/")
    elif target in _OUTSIDE:
        found = _OUTSIDE[target]
    elif target == "examples" or target.startswith("examples/"):
        found, anchor = EXAMPLES_PAGE, slug(target.removeprefix("examples").strip("/"))
    else:
        raise ValueError(f"{path.name}: {link} leads to a file that the site does not have")
    relative = os.path.relpath(found, PurePosixPath(page).parent)
    return f"{relative}#{anchor}" if anchor else relative


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# --- examples ---

_LANGUAGES: dict[str, str] = {".py": "python", ".sh": "sh", ".js": "js", ".json": "json", ".yaml": "yaml"}


def examples_page() -> str:
    """Returns a page with all files of examples/."""
    parts = ["# Examples\n\nWhole programs, for readers who want to see how parts fit. All are tested.\n"]
    folders = [ROOT / "examples", *sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())]
    for folder in folders:
        name = folder.relative_to(ROOT / "examples").as_posix()
        if name != ".":
            if name.startswith("__"):
                continue
            parts.append(f"## {name}\n")
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            title = file.relative_to(ROOT / "examples").as_posix()
            language = _LANGUAGES.get(file.suffix, "text")
            parts.append(f"### {title}\n\n````{language}\n{file.read_text().rstrip()}\n````\n")
    return "\n".join(parts)


# --- generated pages ---


def write_generated(out: Path, pages: dict[str, Callable[[], str]]) -> None:
    for page, build in {**pages, EXAMPLES_PAGE: examples_page}.items():
        target = out / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(build())
