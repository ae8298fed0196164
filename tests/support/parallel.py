"""Runs the files of tests in several processes that are forked after the collection: `--processes 4`.

With pytest-xdist, each process would import and collect all tests, and each test would cost some milliseconds
for messages. Here, the tests are collected once. Each process takes one file after the other from a pipe, so
the tests of a file share their module's fixtures.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import selectors
import struct
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

_NUMBER = struct.Struct("!I")
_READ_BYTES = 1 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "number of processes that run the tests"
    parser.addoption("--processes", type=int, default=1, metavar="N", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.option.processes
    if count < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    _Files(session).run(count)
    return True


class _Process:
    """A forked process, as seen by the first process."""

    def __init__(self, pid: int, reports: int) -> None:
        self.pid = pid
        self.reports = reports
        self.items: list[int] = []
        """Numbers of the tests that it has taken and not finished. The first one is running."""
        self._received = b""

    def receive(self) -> Iterator[tuple[str, Any]] | None:
        """Returns an iterator of the messages that have arrived, or None if the process has ended."""
        data = os.read(self.reports, _READ_BYTES)
        if not data:
            return None
        self._received += data
        return self._messages()

    def _messages(self) -> Iterator[tuple[str, Any]]:
        while len(self._received) >= _NUMBER.size:
            end = _NUMBER.size + _NUMBER.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            message, self._received = self._received[_NUMBER.size : end], self._received[end:]
            kind, value = pickle.loads(message)  # noqa: S301, the process is our own.
            yield kind, value


class _Files:
    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        numbers = itertools.groupby(range(len(session.items)), lambda number: session.items[number].path)
        self._files = [list(group) for _, group in numbers]
        self._queue, queue_end = os.pipe()
        os.write(queue_end, b"".join(_NUMBER.pack(number) for number in range(len(self._files))))
        os.close(queue_end)
        self._selector = selectors.DefaultSelector()
        self._folder = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._started = 0
        self._unfinished = len(session.items)

    # --- in the first process ---

    def run(self, count: int) -> None:
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        # Do not group the printed results by file, because results of several files arrive in alternation.
        reporter.showfspath = False
        for _ in range(min(count, len(self._files))):
            self._start([])
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._handle(key.data)
            if self._session.shouldfail or self._session.shouldstop:
                # Empty the queue, so that the processes end after their current files.
                os.set_blocking(self._queue, False)
                while _read_number(self._queue) is not None:
                    pass
        os.close(self._queue)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        assert not self._unfinished, f"{self._unfinished} tests did not run"

    def _start(self, items: list[int]) -> None:
        """Forks a process, which runs these tests before it takes files from the queue."""
        self._started += 1
        reports, reports_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reports)
            for key in self._selector.get_map().values():
                os.close(key.fd)
            self._run_tests(reports_end, items)
        os.close(reports_end)
        self._selector.register(reports, selectors.EVENT_READ, _Process(pid, reports))

    def _handle(self, process: _Process) -> None:
        messages = process.receive()
        for kind, value in messages or ():
            if kind == "take":
                process.items += value
            elif kind == "finish":
                process.items.remove(value)
                self._unfinished -= 1
            else:
                hook = self._config.hook
                report = hook.pytest_report_from_serializable(config=self._config, data=value)
                hook.pytest_runtest_logreport(report=report)
        if messages is None:
            self._selector.unregister(process.reports)
            os.close(process.reports)
            status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
            if status or process.items:
                self._report_crash(process, status)

    def _report_crash(self, process: _Process, status: int) -> None:
        item = self._session.items[process.items[0] if process.items else -1]
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"the process of this test ended with the status {status}",
            when="call",
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        self._unfinished -= bool(process.items)
        if process.items[1:]:
            self._start(process.items[1:])

    # --- in a forked process ---

    def _run_tests(self, reports: int, items: list[int]) -> NoReturn:
        status = 1
        try:
            self._separate()
            self._config.pluginmanager.register(_Reporter(self._config, reports))
            tests = self._take(reports, items)
            number = next(tests, None)
            while number is not None:
                following = next(tests, None)
                item = self._session.items[number]
                next_item = None if following is None else self._session.items[following]
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
                _send(reports, "finish", number)
                number = following
            status = 0
        finally:
            # End as Python does, but do not finalize all imported modules, because this takes long.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            os._exit(status)

    def _separate(self) -> None:
        """Gives this process its own folder for temporary files and its own files for captured output."""
        folder = self._folder / f"process-{self._started}"
        folder.mkdir(mode=0o700)
        self._config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")._global_capturing
        for stream in (capture.out, capture.err):
            if stream is not None:
                # Replace the file behind the descriptor, and not the file object, because imported modules
                # may have stored the object as `sys.stderr`.
                with tempfile.TemporaryFile() as file:
                    os.dup2(file.fileno(), stream.tmpfile.fileno())
        # Do not print results here, because the first process prints them.
        self._config.pluginmanager.unregister(name="terminalreporter")

    def _take(self, reports: int, items: list[int]) -> Iterator[int]:
        """Yields the numbers of the tests to run. Before pytest runs a test, it must know which fixtures the
        next test needs. So this function takes the next file before the last test of the current file runs.
        """
        while True:
            _send(reports, "take", items)
            yield from items
            if (number := _read_number(self._queue)) is None:
                return
            items = self._files[number]


class _Reporter:
    """Plugin of a forked process that sends reports to the first process."""

    def __init__(self, config: pytest.Config, reports: int) -> None:
        self._config = config
        self._reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        _send(self._reports, "report", hook.pytest_report_to_serializable(config=self._config, report=report))


def _send(reports: int, kind: str, value: Any) -> None:
    message = pickle.dumps((kind, value))
    data = _NUMBER.pack(len(message)) + message
    while data:
        data = data[os.write(reports, data) :]


def _read_number(queue: int) -> int | None:
    try:
        data = os.read(queue, _NUMBER.size)
    except BlockingIOError:
        return None
    number: int | None = _NUMBER.unpack(data)[0] if data else None
    return number
