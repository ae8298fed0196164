"""Registry of test packages for the commands that install packages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.npm import registry


@pytest.fixture(scope="module")
def npm(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry.Registry]:
    """A registry of packages that tests publish. Commands use only this registry, whatever the tester's npm
    configuration says.
    """
    with pytest.MonkeyPatch.context() as patch, registry.run_registry() as served:
        for name in [*os.environ]:
            if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy") or "CERT" in name:
                patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("user")))
        patch.setenv("NPM_CONFIG_REGISTRY", served.url)
        # The published packages have the names of real packages, so other tests must not find them installed
        # in their home.
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("made-up")))
        yield served
