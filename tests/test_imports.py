"""Each module can be imported first: no command depends on modules that another one loaded."""

from __future__ import annotations

import subprocess
import sys

# Imports each module with only the libraries loaded before. A process for each module would take twice as
# long, and one process for all of them would need too much memory.
SCRIPT = """
import gc, importlib, os, sys
from tests.support.forked import modules_of
names = modules_of("hutch")
def forget():
    for each in [name for name in sys.modules if name.partition(".")[0] == "hutch"]:
        del sys.modules[each]
for name in names:
    importlib.import_module(name)
forget()
gc.collect()
gc.freeze()
gc.disable()
for start in range(0, len(names), 20):
    pid = os.fork()
    if pid == 0:
        for name in names[start:start + 20]:
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
            forget()
        os._exit(0)
    os.waitpid(pid, 0)
print(len(names))
"""


def test_each_module_can_be_imported_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    *failures, count = done.stdout.splitlines() or [done.stderr]
    assert not failures
    assert int(count) > 300
