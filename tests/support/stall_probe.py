"""Program that measures how long a server's event loop does not answer, until stdin ends.

The program imports little, because each `ServerStalls` starts it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path

TIMEOUT_SECONDS = 60


def queued_seconds(pid: int, thread: int) -> float:
    """Returns how long this thread was ready to run while other threads had the processors."""
    return _schedule(pid, thread)[1] / 1e9


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all threads of this process."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += _schedule(pid, int(thread.name))[0]
        except OSError:
            # The thread ended.
            continue
    return total / 1e9


def _schedule(pid: int, thread: int) -> tuple[int, int]:
    # Kernel documentation, scheduler/sched-stats: time on a processor, time waiting for one, both in ns.
    used, queued, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()
    return int(used), int(queued)


def main(pid: int, url: str) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    request = f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    _health((host, int(port)), request)
    print("ready", flush=True)
    longest = 0.0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        began, used, queued = time.perf_counter(), cpu_seconds(pid), _queued(pid)
        _health((host, int(port)), request)
        waited = time.perf_counter() - began - (_queued(pid) - queued)
        longest = max(longest, min(waited, cpu_seconds(pid) - used))
    print(longest)


def _queued(pid: int) -> float:
    # Count the time that the event loop's thread, which is the server's main thread, waited for a processor.
    # Add the time that this probe waited, because delays of the probe are not stalls.
    return queued_seconds(pid, pid) + queued_seconds(os.getpid(), os.getpid())


def _health(address: tuple[str, int], request: bytes) -> None:
    with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 "), answer


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
