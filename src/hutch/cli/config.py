"""`hutch config`: shows every setting in force and where it was set."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hutch.cli.support.console import print_json, print_note, print_table
from hutch.cli.support.project import current_folder, load_project_settings_with_sources
from hutch.errors import SettingError
from hutch.settings import SECRETS, Settings, load_with_sources
from hutch.text import cut, did_you_mean

_MAX_VALUE_CHARS = 60


class ShownSetting(msgspec.Struct, frozen=True):
    """A setting in the JSON output."""

    name: str
    value: object
    default: object
    source: str


def show_config(names: Sequence[str], *, server: bool, changed: bool, json: bool) -> int:
    """Prints the settings that commands use in this folder or, with `server`, the settings of a server, which
    ignores the folder. Without `names`, prints all settings.
    """
    for name in names:
        if name not in Settings.__struct_fields__:
            near = did_you_mean(name, Settings.__struct_fields__)
            raise SettingError(f"{name}: there is no such setting.{f' Did you mean {near}?' if near else ''}")
    settings, sources = (
        load_with_sources() if server else load_project_settings_with_sources(folder=current_folder())
    )
    defaults = Settings()
    shown = [
        ShownSetting(
            name,
            "***" if name in SECRETS and getattr(settings, name) else getattr(settings, name),
            getattr(defaults, name),
            sources.get(name, "default"),
        )
        for name in Settings.__struct_fields__
        if (name in sources or not changed) and (not names or name in names)
    ]
    if json:
        print_json(msgspec.json.encode(shown))
        return 0
    if shown:
        rows = [(setting.name, _format(setting.value), setting.source) for setting in shown]
        print_table(("SETTING", "VALUE", "FROM"), rows)
    else:
        print_note("every setting has its default value; `hutch config` lists them all")
    return 0


def _format(value: object) -> str:
    if value is None or value == () or value == {}:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return cut(text, _MAX_VALUE_CHARS)
