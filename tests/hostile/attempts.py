"""Many forbidden things tried in one execution, and what became of each."""

from __future__ import annotations

import json
from collections.abc import Mapping

REFUSED = "refused"


def program(attempts: Mapping[str, str]) -> str:
    """Code that makes every attempt by itself and tells its loot, or that it was refused."""
    functions = ",\n".join(
        f"{json.dumps(name)}: async () => {{ {code if 'return ' in code else f'return ({code})'} }}"
        for name, code in attempts.items()
    )
    return f"""
        const attempts = {{ {functions} }};
        const told = {{}};
        for (const [name, attempt] of Object.entries(attempts)) {{
          try {{
            const loot = await Promise.race([
              attempt(), new Promise((_, reject) => setTimeout(reject, 2000, new Error('never came'))),
            ]);
            const nothing = loot === undefined || loot === null;
            told[name] = nothing ? '{REFUSED}: nothing' : `got ${{JSON.stringify(loot)}}`;
          }} catch (error) {{
            told[name] = `{REFUSED}: ${{error?.name}}: ${{error?.message}}`.slice(0, 200);
          }}
        }}
        return told;
    """


def successes(told: Mapping[str, str]) -> dict[str, str]:
    return {name: what for name, what in told.items() if not what.startswith(REFUSED)}
