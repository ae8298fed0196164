"""JavaScript of imported abilities. Texts of the imported documents occur in the code only as JSON
literals.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hutch.cli.ability_import.models import js

# `segment` refuses values such as `..`, because they would change the path that the ability requests.
PATH_SEGMENT = """\
function segment(value) {
  const text = [value].flat().map((item) => encodeURIComponent(item)).join(",");
  if (/^\\.{0,2}$/.test(text)) throw new Error("expected a value for the path, got " + JSON.stringify(text));
  return text;
}

"""
_ADD_QUERY = """\
function addQuery(query, name, value, style) {
  const text = (item) => typeof item === "object" ? JSON.stringify(item) : String(item);
  if (value === undefined || value === null) return;
  if (style === "json") query.append(name, JSON.stringify(value));
  else if (Array.isArray(value) && style !== "repeat") query.append(name, value.map(text).join(style));
  else if (Array.isArray(value)) value.forEach((item) => query.append(name, text(item)));
  else if (typeof value !== "object") query.append(name, String(value));
  else {
    for (const [key, item] of Object.entries(value)) {
      query.append(style === "deep" ? name + "[" + key + "]" : key, text(item));
    }
  }
}

"""
QueryStyle = Literal["repeat", ",", " ", "|", "deep", "json"]
"""How lists and objects are written into a query: the character that separates the items of a list, `repeat`
for one parameter per item, `deep` for `name[key]=value`, or `json` for JSON text.
"""


class Argument(msgspec.Struct, frozen=True):
    """A parameter of a request, and the name that it has in the payload."""

    name: str
    payload_name: str
    style: QueryStyle = "repeat"

    @property
    def value(self) -> str:
        return f"payload[{js(self.payload_name)}]"


class RequestTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose parameters come from the payload."""

    method: str
    path: list[str | Argument]
    """URL in parts. The first part contains scheme and host, so that no argument can change them."""
    query: list[Argument] = []
    headers: list[Argument] = []
    body: Argument | None = None
    body_type: str = ""

    def code(self) -> str:
        parts = (js(part) if isinstance(part, str) else f"segment({part.value})" for part in self.path)
        lines = [f"  const url = new URL({' + '.join(parts)});"]
        lines += [
            f"  addQuery(url.searchParams, {js(each.name)}, {each.value}, {js(each.style)});"
            for each in self.query
        ]
        init = [f"method: {js(self.method)}"]
        if self.headers or self.body is not None:
            lines.append("  const headers = new Headers();")
            init.append("headers")
        lines += [
            f"  if ({each.value} !== undefined) headers.set({js(each.name)}, String({each.value}));"
            for each in self.headers
        ]
        if self.body is not None:
            value = self.body.value
            lines += [
                "  let body;",
                f"  if ({value} !== undefined) {{",
                f'    headers.set("content-type", {js(self.body_type)});',
                *self._body_lines(value),
                "  }",
            ]
            init.append("body")
        lines.append(f"  return await fetch(url, {{ {', '.join(init)} }});")
        helpers = PATH_SEGMENT if any(isinstance(part, Argument) for part in self.path) else ""
        helpers += _ADD_QUERY if self.query or self._is_form else ""
        return helpers + "\n".join(("export async function wrapper(payload) {", *lines, "}", ""))

    @property
    def _is_form(self) -> bool:
        return self.body_type == "application/x-www-form-urlencoded"

    def _body_lines(self, value: str) -> list[str]:
        if not self._is_form:
            return [f"    body = JSON.stringify({value});"]
        return [
            "    const form = new URLSearchParams();",
            f'    for (const [name, item] of Object.entries({value})) addQuery(form, name, item, "repeat");',
            "    body = form.toString();",
        ]
