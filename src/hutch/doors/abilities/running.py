"""The executions of one call of an ability: whose they are, and what they are called in the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hutch.kernel import Execution, Kernel, Result
from hutch.sandbox.profile import profile_for
from hutch.session.messages import Job
from hutch.session.providers import Provider

_QUICKJS = profile_for("quickjs")


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """For whom, through which door, and which ability."""

    kernel: Kernel
    owner: str
    door: str
    label: str

    async def run(
        self,
        code: str,
        job: Job,
        part: str = "",
        *,
        timeout_ms: float,
        memory_bytes: int,
        providers: Sequence[Provider] = (),
        run_id: str | None = None,
        requests: Sequence[Any] = (),
        failure_in: Callable[[Any], str | None] | None = None,
    ) -> Result:
        """Raises HutchError when it could not be begun."""
        asked = {"timeout_ms": timeout_ms, "memory_limit_bytes": memory_bytes}
        return await self.kernel.run(
            Execution(
                code=code,
                profile=_QUICKJS,
                limits=self.kernel.limits(asked, clamp=True),
                providers=providers,
                owner=self.owner,
                door=self.door,
                label=f"{self.label}#{part}" if part else self.label,
                run_id=run_id,
                job=job,
                requests=requests,
                failure_in=failure_in,
            )
        )
