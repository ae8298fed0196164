"""Stands for a server that is forked from a process with all libraries loaded: see `tests/forked.py`.

`python -I -S lent.py WHERE SCRIPT …` is to who starts it what `python SCRIPT …` is, and is there at once.
What is forked has its streams, and is killed when it ends; but it is no child of it, and hears no signals.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as forker:
    forker.connect("\0" + sys.argv[1])
    # Without pathlib, which takes longer to load than all this.
    cwd = os.getcwd()  # noqa: PTH109
    order = {"script": sys.argv[2], "arguments": sys.argv[3:], "env": dict(os.environ), "cwd": cwd}
    data = json.dumps(order).encode()
    socket.send_fds(forker, [len(data).to_bytes(4, "big")], [0, 1, 2])
    forker.sendall(data)
    # What it closes is to be closed.
    os.closerange(0, 3)
    status = forker.recv(4)
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big")) if status else 1
os._exit(code if code >= 0 else 128 - code)
