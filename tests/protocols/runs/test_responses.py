from __future__ import annotations

import hashlib

from hutch.kernel.execution import Execution
from hutch.protocols.runs.responses import ActiveRun
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import RunHandle


def test_only_the_details_of_a_run_in_progress_have_the_hash_of_its_code() -> None:
    """Hashing code of a megabyte takes 1 to 3 ms, and hundreds of runs can be in progress. So lists of runs
    have no hash.
    """
    active = ActiveRun(Execution(code="1", profile=profile_for("quickjs")), RunHandle())
    assert "code_hash" not in active.details
    assert (active.entry["state"], active.detail()["state"]) == ("pending", "pending")
    assert active.detail()["code_hash"] == hashlib.sha256(b"1").hexdigest()
