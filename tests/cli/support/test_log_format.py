"""Warnings that the command line prints."""

from __future__ import annotations

import io
import logging

from hutch.cli.support.log_format import PrintableFormatter, SettingWarningsOnce
from hutch.settings.load import load_settings


def test_warning_about_a_setting_is_printed_once() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(PrintableFormatter("hutch: %(message)s"))
    handler.addFilter(SettingWarningsOnce())
    logger = logging.getLogger("hutch")
    logger.addHandler(handler)
    try:
        for _ in range(2):
            load_settings(environ={"HUTCH_FETCH_REDIRECTS": "3"})
            logger.warning("again")
    finally:
        logger.removeHandler(handler)
    lines = output.getvalue().splitlines()
    assert ["is now HUTCH_MAX_FETCH_REDIRECTS" in line for line in lines] == [True, False, False]
    assert lines[1:] == ["hutch: again"] * 2
