"""Contents of run records: selects them by level, collects them and limits their size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.kernel.caller import caller_key
from hutch.session.events.timeline import MAX_LOG_LINE_CHARS, Cut, RecordedCall, RecordedLog, cut_json
from hutch.session.files.model import File
from hutch.session.json_value import decode_value, encode_value, well_formed
from hutch.session.run import Result, RunHandle
from hutch.settings.model import RecordLevel
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution

MAX_RECORD_BYTES = 256 * 1024
MAX_LISTED_MESSAGE_CHARS = 500
"""Maximum length of the error message in lists of runs. The content has the whole message."""
LAST_LOG_LINES = 50
"""At the level `errors`, the record of a failed run contains this many of the last log lines."""


class RecordLevels:
    """Levels of the settings `record`, `record_protocols` and `record_keys`."""

    def __init__(
        self,
        default: RecordLevel = "errors",
        by_protocol: Mapping[str, RecordLevel] | None = None,
        max_bytes: int = MAX_RECORD_BYTES,
        by_key: Mapping[str, RecordLevel] | None = None,
    ) -> None:
        self._default = default
        self._by_protocol = by_protocol or {}
        self._by_key = by_key or {}
        self.max_bytes = max_bytes

    def of(self, protocol: str, requested: str | None = None, *, key: str | None = None) -> RecordLevel:
        """Returns the level of a run. `requested` is the level that the run's handle asks for, if any. `key`
        is the id of the run's API key. With None, the key of the current task is used.
        """
        if requested is None and self._by_key and (key := key or caller_key.get()) is not None:
            requested = self._by_key.get(key)
        return requested or self._by_protocol.get(protocol, self._default)  # type: ignore[return-value]


class RecordedError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    name: str | None = None
    line: int | None = None
    column: int | None = None
    stack: str | None = None


class RecordedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that the guest wrote."""

    name: str
    mime_type: str
    size: int
    data: bytes | None = None
    """None if the file was too long to be recorded."""


class RunContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Content of a record. A value that would make the record too long is replaced by its size."""

    error: RecordedError | None = None
    code: str | Cut | None = None
    inputs: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    logs: list[RecordedLog] | UnsetType = UNSET
    calls: list[RecordedCall] | UnsetType = UNSET
    is_code: bool = False
    """True if the run can be repeated from `code` and `inputs`, apart from its tools."""
    calls_left_out: int = 0
    """Number of calls whose contents did not fit."""
    providers: dict[str, list[str]] = {}
    """Names of the tools that the run was given, by namespace. A replay needs them."""
    server_tools: bool = False
    """True if the tools in `providers` belong to the server, so that a replay can call them again."""
    files: list[RecordedFile] = []


def error_text(run: RunHandle, result: Result) -> str | None:
    """Returns the error message for lists of runs, cut to MAX_LISTED_MESSAGE_CHARS."""
    if run.outcome == "ok":
        return None
    text, error = run.failure_message, result.error
    if text is None and error is not None:
        name = f"{error.name}: " if error.name and error.name != "Error" else ""
        text = f"{name}{error.message}"
    return None if text is None else cut(run.redacted(text), MAX_LISTED_MESSAGE_CHARS)


def run_content(
    execution: Execution, run: RunHandle, result: Result, level: RecordLevel, max_bytes: int
) -> str:
    """Returns the content of a record as JSON text. The run's secrets are redacted later, when the record is
    stored.
    """
    # Use only half of `max_bytes`, because the calls and log lines of the timeline may have used the other
    # half.
    budget = _Budget(max_bytes // 2)
    content = RunContent(error=_error(run, result))
    budget.take(len(result.error.stack or "") if result.error else 0)
    source = execution.source
    code = execution.code if source is None else source.code
    inputs = execution.inputs if source is None else source.inputs
    if code is not None:
        content.code = code if budget.take(len(code)) else Cut(len(code))
    content.is_code = source is None and execution.job is None
    if level == "full":
        content.inputs = budget.bounded(inputs)
        content.output = budget.bounded(result.result_json)
        content.providers = {provider.name: [*provider.tools] for provider in execution.providers}
        content.server_tools = execution.is_durable
        content.files = [_file(file, run, budget) for file in result.files]
        timeline = run.timeline
        if timeline is not None:
            content.calls = [*timeline.calls.values()]
            content.calls_left_out = timeline.calls_left_out
            content.logs = timeline.logs
    if content.logs is UNSET:
        logs = _logs(run, result)
        content.logs = [
            log for log in logs[0 if level == "full" else -LAST_LOG_LINES :] if budget.take(len(log.line))
        ]
    return _encode(content)


def _file(file: File, run: RunHandle, budget: _Budget) -> RecordedFile:
    # Leave out the files of a run with secrets. A record contains files as Base64, in which the secrets could
    # not be redacted.
    is_kept = run.redactor is None and budget.take(file.size * 4 // 3)
    data = file.data if is_kept else None
    return RecordedFile(name=file.name, mime_type=file.mime_type, size=file.size, data=data)


def _logs(run: RunHandle, result: Result) -> list[RecordedLog]:
    """Returns all log lines, with their times if known. The output of a script is only in the timeline."""
    if run.timeline is not None and (not result.logs or len(run.timeline.logs) == len(result.logs)):
        return run.timeline.logs
    return [RecordedLog(cut(line, MAX_LOG_LINE_CHARS)) for line in result.logs]


def _encode(content: RunContent) -> str:
    try:
        return msgspec.json.encode(content).decode()
    except UnicodeEncodeError:
        # msgspec cannot encode lone surrogates, which code and log lines of guests may contain.
        values = msgspec.to_builtins(content, enc_hook=lambda raw: decode_value(bytes(raw)))
        return encode_value(_well_formed(values)).decode()


def _well_formed(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {name: _well_formed(item) for name, item in value.items()}
        case list():
            return [_well_formed(item) for item in value]
    return value


def _error(run: RunHandle, result: Result) -> RecordedError | None:
    error, message = result.error, run.failure_message
    if error is None:
        return None if message is None else RecordedError(code=run.outcome, message=message)
    return RecordedError(
        code=run.outcome,
        message=message or error.message,
        name=error.name,
        line=error.line,
        column=error.column,
        stack=error.stack,
    )


class _Budget:
    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def bounded(self, json: bytes | None) -> Raw | UnsetType:
        if json is None:
            return UNSET
        return Raw(json) if self.take(len(json)) else cut_json(len(json))
