"""Runs guest code for one ability call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hutch.kernel.execution import Execution, Source
from hutch.kernel.kernel import Kernel
from hutch.kernel.run_preparation import RunPreparation
from hutch.sandbox.runner.profile import profile_for
from hutch.session.messages import Job
from hutch.session.run import Result, RunHandle
from hutch.session.tools.provider import Provider

_QUICKJS = profile_for("quickjs")


class AbilityRun(msgspec.Struct, frozen=True, kw_only=True):
    """Runs the executions of one ability call. All of them have the same owner, protocol and label."""

    kernel: Kernel
    owner: str
    protocol: str
    label: str
    preparation: RunPreparation | None = None
    """Prepares the run of the wrapper. None if the call does not come from the queue."""

    async def run(
        self,
        code: str,
        job: Job,
        label_suffix: str = "",
        *,
        timeout_ms: float,
        memory_bytes: int,
        providers: Sequence[Provider] = (),
        run: RunHandle | None = None,
        source: Source | None = None,
    ) -> Result:
        """Runs code in the sandbox. If `run` is None, only metadata is recorded, because the code and its
        result may contain secrets that this method cannot redact. Raises HutchError if the execution cannot
        start.
        """
        limits = {"timeout_ms": timeout_ms, "memory_limit_bytes": memory_bytes}
        return await self.kernel.run(
            Execution(
                code=code,
                profile=_QUICKJS,
                limits=self.kernel.limits(limits, clamp=True),
                providers=providers,
                owner=self.owner,
                protocol=self.protocol,
                label=f"{self.label}#{label_suffix}" if label_suffix else self.label,
                job=job,
                source=source or Source(code),
            ),
            run or RunHandle(record_level="metadata"),
        )
