"""Typed settings: their model, and loading them from flags, variables and files."""

from hutch.settings.load import (
    FILE,
    PROJECT_SETTINGS,
    as_environ,
    load_settings,
    load_with_sources,
    project_values,
)
from hutch.settings.model import DEFAULT_PORT, MIB, SECRETS, Settings, cores

__all__ = [
    "DEFAULT_PORT",
    "FILE",
    "MIB",
    "PROJECT_SETTINGS",
    "SECRETS",
    "Settings",
    "as_environ",
    "cores",
    "load_settings",
    "load_with_sources",
    "project_values",
]
