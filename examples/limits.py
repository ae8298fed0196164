"""Code that misbehaves, and what becomes of it. Nothing here raises: a guest's failure is a result."""

import hutch

GUESTS = {
    "never ends": "for (;;);",
    "takes all memory": "const all = []; for (;;) all.push(new Array(1e5).fill(0));",
    "has a mistake": "const user = {};\nreturn user.name.first;",
    "is no JavaScript": "return 1 +",
    "returns what is not JSON": "return { when: new Date() };",
    "prints too much": "for (let i = 0; i < 1e4; i++) console.log(i); return 'done'",
    "looks for a way out": "return [typeof fetch, typeof process, typeof Deno]",
}

for what, code in GUESTS.items():
    r = hutch.run_sync(code, timeout_ms=2000, max_log_lines=10)
    if r.error is None:
        print(f"{what}: {r.result}, {len(r.logs)} lines of log")
    else:
        where = f" in line {r.error.line}" if r.error.line else ""
        print(f"{what}: {r.error.code}{where}: {r.error.message}")
