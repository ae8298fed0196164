"""Runs code that misbehaves. Nothing here raises: a guest's failure is a result."""

import hutch

GUESTS = {
    "never ends": "for (;;);",
    "takes all memory": "const all = []; for (;;) all.push(new Array(1e5).fill(0));",
    "has a mistake": "const user = {};\nreturn user.name.first;",
    "is not JavaScript": "return 1 +",
    "returns a value that is not JSON": "return { when: new Date() };",
    "prints too much": "for (let i = 0; i < 1e4; i++) console.log(i); return 'done'",
    "looks for host APIs": "return [typeof fetch, typeof process, typeof Deno]",
}

for name, code in GUESTS.items():
    r = hutch.run_sync(code, timeout_ms=500 if name == "never ends" else 5_000, max_log_lines=10)
    if r.error is None:
        print(f"{name}: {r.result}, {len(r.logs)} lines of log")
    else:
        position = f" in line {r.error.line}" if r.error.line else ""
        print(f"{name}: {r.error.code}{position}: {r.error.message}")
