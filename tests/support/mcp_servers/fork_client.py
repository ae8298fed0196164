"""Starts a server by forking a process that has all libraries loaded: see `tests/support/forked.py`.

`python -I -S fork_client.py SOCKET SCRIPT …` behaves like `python SCRIPT …`, but starts at once. The forked
process gets this process's streams and is killed when this process ends. It is not a child of this process,
and signals are not passed on.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as forker:
    forker.connect("\0" + sys.argv[1])
    # Do not use pathlib, because loading it takes longer than the rest of this program.
    cwd = os.getcwd()  # noqa: PTH109
    order = {"script": sys.argv[2], "arguments": sys.argv[3:], "env": dict(os.environ), "cwd": cwd}
    data = json.dumps(order).encode()
    socket.send_fds(forker, [len(data).to_bytes(4, "big")], [0, 1, 2])
    forker.sendall(data)
    # Close the streams here, so that only the forked server has them open.
    os.closerange(0, 3)
    status = forker.recv(4)
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big")) if status else 1
os._exit(code if code >= 0 else 128 - code)
