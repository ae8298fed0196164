"""Runs code on a server while the tools run here: `hutch serve`, then `python remote.py ws://127.0.0.1:4111`."""

import asyncio
import os
import sys

import hutch


async def read_note(name: str) -> str:
    """Read a note that only this machine has."""
    await asyncio.sleep(0)
    return {"today": "water the plants", "tomorrow": "call the bank"}.get(name, "")


async def main(url: str) -> None:
    async with hutch.connect(url, api_key=os.environ.get("HUTCH_API_KEY")) as h:
        # Both executions use the same connection.
        runs = (
            h.run(f"return (await tools.read_note({{ name: '{day}' }})).toUpperCase()", tools=[read_note])
            for day in ("today", "tomorrow")
        )
        for r in await asyncio.gather(*runs):
            print(r.result if r.ok else r.error)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:4111"))
    except hutch.HutchError as error:
        sys.exit(str(error))
