"""Many expressions in one execution, each by itself."""

from __future__ import annotations

import json
from typing import Any

Topic = dict[str, tuple[str, Any]]
"""By name: an expression or a body with `return`, and its value, or "!" and the name of what it throws."""


def program(expressions: Topic) -> str:
    """Runs every expression by itself, all at once."""
    functions = ",\n".join(
        f"{json.dumps(name)}: async () => {{ {code if 'return ' in code else f'return ({code})'} }}"
        for name, (code, _) in expressions.items()
    )
    return f"""
        const all = {{ {functions} }};
        const outcomes = Object.entries(all).map(async ([name, run]) => {{
          try {{ return [name, await run()] }} catch (e) {{ return [name, `!${{e.name}}`] }}
        }});
        return Object.fromEntries(await Promise.all(outcomes));
    """


def expected(expressions: Topic) -> dict[str, Any]:
    return {name: value for name, (_, value) in expressions.items()}
