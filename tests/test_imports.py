"""Each module can be imported first: no command depends on modules that another one loaded."""

from __future__ import annotations

import subprocess
import sys

# One process for each module, with only the libraries loaded before.
SCRIPT = """
import importlib, os, sys
from tests.support.forked import LIBRARIES, modules_of
for library in LIBRARIES:
    importlib.import_module(library)
names = modules_of("hutch")
for each in [name for name in sys.modules if name.partition(".")[0] == "hutch"]:
    del sys.modules[each]
for name in names:
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
print(len(names))
"""


def test_each_module_can_be_imported_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    *failures, count = done.stdout.splitlines() or [done.stderr]
    assert not failures
    assert int(count) > 300
