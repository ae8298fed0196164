"""Passes the packets of two network interfaces to each other after a delay, in their order:
`delayed_link.py FIRST SECOND SECONDS`.
"""

import contextlib
import selectors
import socket
import sys
from collections import deque
from time import monotonic

ETH_P_ALL = 3
SOL_PACKET = 263
# The kernel leaves checksums, and the division of large packets, to the hardware. With this option, each
# packet begins with a description of what is left to do.
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
MAX_PACKET_BYTES = 1 << 17


def main(first: str, second: str, seconds: str) -> None:
    ends = [_open(first), _open(second)]
    delay = float(seconds)
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    selector = selectors.DefaultSelector()
    for end, other in (ends, reversed(ends)):
        selector.register(end, selectors.EVENT_READ, other)
    print("ready", flush=True)
    while True:
        timeout = max(0.0, waiting[0][0] - monotonic()) if waiting else None
        for key, _ in selector.select(timeout):
            source = key.fileobj
            assert isinstance(source, socket.socket)
            with contextlib.suppress(BlockingIOError):
                while True:
                    waiting.append((monotonic() + delay, key.data, source.recv(MAX_PACKET_BYTES)))
        while waiting and waiting[0][0] <= monotonic():
            _, target, packet = waiting.popleft()
            # A packet that cannot be sent is lost, as on a real link.
            with contextlib.suppress(OSError):
                target.send(packet)


def _open(interface: str) -> socket.socket:
    # Receives nothing before it is bound.
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    opened.bind((interface, ETH_P_ALL))
    opened.setblocking(False)
    return opened


if __name__ == "__main__":
    main(*sys.argv[1:])
