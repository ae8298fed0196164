"""Registry configuration for the installer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hutch.npm.registry import read_registry_config


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def options(home: Path, **environ: str) -> dict[str, str]:
    lines = read_registry_config(home, {"HOME": "/nonexistent", **environ}).npmrc.splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_hutch_npmrc_overrides_the_users_and_the_environment_overrides_both(user: Path, home: Path) -> None:
    (user / ".npmrc").write_text(
        "registry=https://one.invalid/\n@a:registry = https://a.invalid/\n; a remark\n"
    )
    (home / ".npmrc").write_text("registry=https://two.invalid/\n# another\nfund=false\n")
    found = options(home, HOME=str(user))
    assert found == {"registry": "https://two.invalid/", "@a:registry": "https://a.invalid/", "fund": "false"}
    assert options(home, HOME=str(user), npm_config_registry="https://three.invalid/")["registry"] == (
        "https://three.invalid/"
    )


@pytest.mark.parametrize("name", ["NPM_CONFIG_REGISTRY", "npm_config_registry", "Npm_Config_Registry"])
def test_registry_variable_is_read_in_any_case(home: Path, name: str) -> None:
    assert options(home, **{name: "https://r.invalid/"})["registry"] == "https://r.invalid/"


def test_tokens_come_from_files_and_variables(user: Path, home: Path) -> None:
    (user / ".npmrc").write_text("//r.invalid/:_authToken=${TOKEN}\n//s.invalid/:_authToken=${UNSET}\n")
    environ = {"HOME": str(user), "TOKEN": "one", "npm_config_//t.invalid/:_authToken": "two"}
    assert options(home, **environ) == {
        "//r.invalid/:_authToken": "one",
        "//s.invalid/:_authToken": "${UNSET}",
        "//t.invalid/:_authToken": "two",
    }


def test_user_config_path_can_be_changed(user: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("registry=https://other.invalid/\n")
    found = options(home, HOME=str(user), NPM_CONFIG_USERCONFIG=str(other))
    assert found["registry"] == "https://other.invalid/"


def test_variable_with_a_line_break_is_ignored(home: Path) -> None:
    assert options(home, npm_config_registry="https://r.invalid/\n//r.invalid/:_authToken=x") == {}


def test_proxies_come_from_variables_in_either_case_or_from_npm_options(user: Path, home: Path) -> None:
    (user / ".npmrc").write_text("https-proxy=http://npm.invalid\nnoproxy=localhost\n")
    variables = read_registry_config(home, {"HOME": str(user), "http_proxy": "http://p.invalid"}).variables
    assert variables["HTTP_PROXY"] == "http://p.invalid"
    assert variables["HTTPS_PROXY"] == "http://npm.invalid"
    assert variables["NO_PROXY"] == "localhost"


def test_certificates_are_collected_and_missing_files_omitted(
    user: Path, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("deno", "node", "npm", "system"):
        (tmp_path / name).write_text("")
    (user / ".npmrc").write_text(f"cafile={tmp_path / 'npm'}\n")
    environ = {
        "HOME": str(user),
        "DENO_CERT": str(tmp_path / "deno"),
        "NODE_EXTRA_CA_CERTS": str(tmp_path / "node"),
        "SSL_CERT_FILE": str(tmp_path / "system"),
        "SSL_CERT_DIR": "/nonexistent",
        "DENO_TLS_CA_STORE": "mozilla",
    }
    found = read_registry_config(home, environ)
    assert [Path(path).name for path in found.certificates] == ["deno", "node", "npm"]
    assert found.variables["SSL_CERT_FILE"] == str(tmp_path / "system")
    assert found.variables["DENO_TLS_CA_STORE"] == "mozilla,system"
    assert "SSL_CERT_DIR" not in found.variables
    assert "SSL_CERT_DIR names /nonexistent" in caplog.text


def test_nothing_else_is_passed_on(home: Path) -> None:
    others = {"HUTCH_API_KEY": "k", "PATH": "/bin", "LD_PRELOAD": "x", "NODE_OPTIONS": "y"}
    found = read_registry_config(home, {"HOME": "/nonexistent", **others})
    assert found.variables == {"DENO_TLS_CA_STORE": "mozilla,system"}
    assert found.npmrc == ""


def test_repr_does_not_contain_secrets(user: Path, home: Path) -> None:
    (user / ".npmrc").write_text("//r.invalid/:_authToken=secret\n")
    assert "secret" not in repr(read_registry_config(home, {"HOME": str(user)}))


def test_unreadable_file_is_logged_and_skipped(
    user: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (user / ".npmrc").write_bytes(b"\xff\xfe")
    assert read_registry_config(home, {"HOME": str(user)}).npmrc == ""
    assert "cannot be read" in caplog.text
