"""A registry of made-up packages for the commands that install some."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.npm import registry


@pytest.fixture(scope="module")
def npm(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry.Registry]:
    """Nothing of how the tester reaches a registry counts."""
    with pytest.MonkeyPatch.context() as patch, registry.serving() as served:
        for name in [*os.environ]:
            if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy") or "CERT" in name:
                patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("user")))
        patch.setenv("NPM_CONFIG_REGISTRY", served.url)
        # What is published here has the names of real packages: it must not be on the shelf of other tests.
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("made-up")))
        yield served
