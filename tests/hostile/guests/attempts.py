"""Tries many forbidden actions in one execution."""

from __future__ import annotations

import json
from collections.abc import Mapping

REFUSED = "refused"


def program(attempts: Mapping[str, str]) -> str:
    """Returns a program that makes every attempt. The program returns, by name, the value of each attempt or
    the error that refused it.
    """
    functions = ",\n".join(
        f"{json.dumps(name)}: async () => {{ {code if 'return ' in code else f'return ({code})'} }}"
        for name, code in attempts.items()
    )
    return f"""
        const attempts = {{ {functions} }};
        const results = {{}};
        for (const [name, attempt] of Object.entries(attempts)) {{
          try {{
            const value = await Promise.race([
              attempt(), new Promise((_, reject) => setTimeout(reject, 2000, new Error('timeout'))),
            ]);
            const nothing = value === undefined || value === null;
            results[name] = nothing ? '{REFUSED}: nothing' : `got ${{JSON.stringify(value)}}`;
          }} catch (error) {{
            results[name] = `{REFUSED}: ${{error?.name}}: ${{error?.message}}`.slice(0, 200);
          }}
        }}
        return results;
    """


def successes(results: Mapping[str, str]) -> dict[str, str]:
    return {name: result for name, result in results.items() if not result.startswith(REFUSED)}
