"""Builds programs that evaluate many expressions in one execution. An error in one expression does not affect
other expressions.
"""

from __future__ import annotations

import json
from typing import Any

Topic = dict[str, tuple[str, Any]]
"""Maps a name to an expression (or a body with `return`) and its value. An expected error is "!" and its
name.
"""


def program(expressions: Topic) -> str:
    """Returns a program that evaluates all expressions concurrently and returns their values by name."""
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
