"""Keeps the former module of step kinds, `hutch.doors.rep.kinds.registry`, importable for extensions.

The former module will be removed in Hutch 0.3.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

logger = logging.getLogger("hutch.rep")

OLD_PATH = "hutch.doors.rep.kinds.registry"
NEW_PATH = "hutch.step_kinds"


class _OldPathImporter(MetaPathFinder, Loader):
    """Import hook for the former module and its parent packages, which no longer exist as files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != OLD_PATH and not OLD_PATH.startswith(f"{fullname}."):
            return None
        return ModuleSpec(fullname, self, is_package=fullname != OLD_PATH)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != OLD_PATH:
            return
        step_kinds = import_module(NEW_PATH)
        vars(module).update({name: getattr(step_kinds, name) for name in step_kinds.__all__})
        message = f"{OLD_PATH} is deprecated: import {NEW_PATH}"
        # Report the import twice: in the log for the operator of the runtime, and as a warning for the author
        # of the extension.
        logger.warning(message)
        warnings.warn(message, DeprecationWarning, stacklevel=2)


_importer = _OldPathImporter()


def allow_old_path() -> None:
    """Makes the former module importable in this process."""
    if _importer not in sys.meta_path:
        sys.meta_path.append(_importer)
