"""What goes to stdout for other programs, and what a guest said to people."""

from __future__ import annotations

import re
import sys
import unicodedata

# JSON escapes no others: DEL, and in UTF-8 U+0080 to U+009F, of which terminals obey some.
_CONTROL = re.compile(rb"\x7f|\xc2[\x80-\x9f]")


def print_json(text: bytes) -> None:
    """JSON is UTF-8, whatever the terminal's encoding is."""
    sys.stdout.buffer.write(_CONTROL.sub(_escaped, text) + b"\n")
    sys.stdout.buffer.flush()


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(found[0].decode())


def defused(text: str) -> str:
    """A guest's words without what a terminal would obey; lines and tabs stay."""
    return text if text.isprintable() else "".join(map(_defused, text))


def _defused(each: str) -> str:
    # Controls, those of direction among them, lone surrogates and separators of lines; emoji need joiners.
    obeyed = unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") and each not in "\n\t\u200c\u200d"
    return f"\\u{ord(each):04x}" if obeyed else each


def print_log(line: str) -> None:
    """As it is, for another program; what people read shall not be written by a guest."""
    print(defused(line) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
