"""Starts a run in a second process, where it is suspended while a person decides. Kills that process, and
continues the run in this process.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import hutch

CODE = """
    const [price, decision] = await Promise.all([
        tools.price({item: "chair"}),
        tools.approve({question: "Buy a chair?"}),
    ]);
    return `${decision}: ${price} EUR`;
"""


def price(item: str) -> int:
    """Looks up a price."""
    print(f"process {os.getpid()} looks up the price of a {item}")
    return 80


def approve(question: str) -> str:
    """Asks a person."""
    raise hutch.Suspend(question)


TOOLS = [price, approve]


async def begin() -> None:
    async with hutch.Hutch() as h:
        result = await h.run(CODE, tools=TOOLS)
        (call,) = result.pending_calls
        print(f"suspended: {call.message}")
        print(result.run_id, call.call_id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def decide(run_id: str, call_id: str) -> None:
    async with hutch.Hutch() as h:
        run = await h.resume(run_id, {call_id: "approved"}, tools=TOOLS)
        print((await run.result()).result)


if sys.argv[1:] == ["begin"]:
    asyncio.run(begin())
else:
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUTCH_HOME"] = home
        begun = subprocess.run([sys.executable, __file__, "begin"], stdout=subprocess.PIPE, text=True)
        *printed, ids = begun.stdout.splitlines()
        print(*printed, f"process ended by signal {-begun.returncode}", sep="\n")
        asyncio.run(decide(*ids.split()))
