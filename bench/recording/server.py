"""The command `hutch` with or without run records: `python -m bench.recording.server errors|none serve …`."""

from __future__ import annotations

import sys

import msgspec

from hutch.cli import main
from hutch.kernel.records import RunRecorder
from hutch.protocols.rep.orchestrator import runtime_choice
from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice
from hutch.store.backends.base import SqlStatement, WriteResult
from hutch.store.backends.sqlite import SqliteDatabase


def command(records: str) -> tuple[str, ...]:
    return sys.executable, "-m", "bench.recording.server", records


def start(records: str) -> None:
    # The programs with and without records are the same except for the parts that write records.
    if records == "none":
        _drop_records()
    builtin_runtime = runtime_choice.builtin_runtime

    def runtime() -> RuntimeChoice:
        # Each flow runs in a process of its own, which records the flow at its end.
        return msgspec.structs.replace(builtin_runtime(), command=(*command(records), "runtime", "serve"))

    runtime_choice.builtin_runtime = runtime  # type: ignore[assignment]
    main()


def _drop_records() -> None:
    """Makes this process record nothing, for which there is no setting."""
    RunRecorder.sink = property(lambda self: None, lambda self, sink: None)  # type: ignore[assignment]
    write = SqliteDatabase.write

    async def write_all_but_records(database: SqliteDatabase, *statements: SqlStatement) -> list[WriteResult]:
        # The transaction that ends a flow run also inserts its record.
        kept = [statement for statement in statements if "INSERT INTO runs" not in statement.sql]
        return await write(database, *kept)

    SqliteDatabase.write = write_all_but_records  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    start(sys.argv.pop(1))
