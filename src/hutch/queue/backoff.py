"""Computes the delays between attempts."""

from __future__ import annotations

import random

FIRST_RETRY_MS = 1_000
MAX_RETRY_MS = 600_000
JITTER = 0.2


def retry_delay_ms(attempts: int) -> int:
    """Returns the delay after this number of failed attempts. The delay doubles with each attempt, up to a
    maximum.
    """
    return with_jitter(min(FIRST_RETRY_MS * 2 ** min(attempts - 1, 20), MAX_RETRY_MS))


def with_jitter(milliseconds: float) -> int:
    """Changes a delay a little at random, so that many attempts do not happen at the same time."""
    return int(milliseconds * (1 + random.uniform(-JITTER, JITTER)))
