"""`hutch console`: prints, or opens, a link that signs a browser in to the web console."""

from __future__ import annotations

import json
import webbrowser
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from hutch.cli.support.console import print_line, print_note
from hutch.errors import HutchError
from hutch.settings import load_settings

_SECONDS = 10


def open_console(url: str | None, *, browser: bool) -> int:
    """Prints the link. `url` is the server's address; by default the one in the settings."""
    settings = load_settings()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = (url or f"http://{host}:{settings.port}").rstrip("/")
    # urllib encodes headers as Latin-1, but keys are UTF-8.
    key = (settings.api_key or "").encode().decode("latin-1")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = Request(f"{base}/console/links", b"", headers)
        with urlopen(request, timeout=_SECONDS) as response:
            link = base + json.load(response)["path"]
    except HTTPError as error:
        remedy = "Set HUTCH_API_KEY to its key." if error.code == 401 else "Is it a Hutch server?"
        raise HutchError(f"{base} answered {error.code}.", remedy=remedy) from None
    except (URLError, HTTPException, OSError, ValueError, KeyError) as error:
        reason = getattr(error, "reason", error)
        raise HutchError(
            f"{base} cannot be reached: {reason}.",
            remedy="Start it with `hutch serve`, or name its address with --url or HUTCH_URL.",
        ) from None
    print_line(link)
    if settings.api_key:
        print_note("the link signs one browser in, within 10 minutes")
    if browser and not webbrowser.open(link):
        print_note("no browser could be started; open the link yourself")
    return 0
