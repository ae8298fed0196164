"""Public interface for packages that add step kinds to flows.

A package adds a kind with an entry point of the group `hutch.step_kinds`. The name of the entry point is the
name of the kind:

```python
async def run(call: Call) -> object:
    return {"sum": call.params["a"] + call.params["b"]}

SUM = Kind("sum", run, schema={"type": "object", "required": ["a", "b"]})
```
"""

from __future__ import annotations

from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed

__all__ = ["Call", "Kind", "StepFailed"]
