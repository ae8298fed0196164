"""Connecting to NATS: addresses, credentials, TLS, several servers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats.aio.client import Client
from tests.support.network.certificates import certificates
from tests.support.network.clusters import (
    SECRET,
    NatsServer,
    free_port,
    open_front,
    running_nats,
    running_worker,
)
from tests.support.processes import hutch
from tests.support.waiting import eventually

from hutch.cluster import connection
from hutch.cluster.connection import ClusterConnection, ClusterUnavailable
from hutch.errors import SettingError
from hutch.settings import load_settings

PAGE = Path(__file__).parents[2] / "docs/scaling.md"


def settings(url: str, **more: Any) -> Any:
    return load_settings({"cluster_url": url, "cluster_secret": SECRET, **more}, environ={})


@asynccontextmanager
async def connected(url: str, **more: Any) -> AsyncIterator[ClusterConnection]:
    opened = await ClusterConnection.open(settings(url, **more), "test")
    try:
        yield opened
    finally:
        await opened.close()


async def test_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.1)
    port = free_port()
    with pytest.raises(
        ClusterUnavailable, match=rf"NATS at 127.0.0.1:{port} cannot be reached: .*nats-server"
    ):
        await ClusterConnection.open(settings(f"nats://bo:pw@127.0.0.1:{port}"), "test")


async def test_user_and_password_are_checked() -> None:
    with running_nats("--user", "bo", "--pass", "right") as server:
        async with connected(server.url, cluster_user="bo", cluster_password="right") as opened:
            assert opened.problem is None
        for more in ({}, {"cluster_user": "bo", "cluster_password": "wrong"}):
            with pytest.raises(ClusterUnavailable, match=r"refused this machine: .*cluster_password"):
                await ClusterConnection.open(settings(server.url, **more), "test")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"cluster_secret": None}, "cluster_secret: expected a secret"),
        ({"cluster_url": "http://127.0.0.1"}, "cluster_url: expected nats://HOST:PORT"),
        ({"cluster_tls_cert": "/cert"}, "cluster_tls_cert and cluster_tls_key"),
    ],
)
def test_wrong_settings_are_explained(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        connection.check_settings(
            load_settings({"cluster_url": "nats://x", "cluster_secret": SECRET} | more, environ={})
        )


def test_short_secret_is_refused() -> None:
    done = hutch("worker", "--cluster", "nats://127.0.0.1:1", env={"HUTCH_CLUSTER_SECRET": "short"})
    assert done.returncode == 2
    assert "HUTCH_CLUSTER_SECRET" in done.stderr
    assert "short" not in done.stderr


async def test_missing_credentials_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cluster_creds_file: .*missing cannot be read"):
        await ClusterConnection.open(
            settings("nats://x", cluster_creds_file=str(tmp_path / "missing")), "test"
        )


async def test_server_with_tls_needs_a_known_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.1)
    files = certificates()
    arguments = ("--tls", "--tlscert", str(files.server), "--tlskey", str(files.server))
    with running_nats(*arguments, scheme="tls") as server:
        async with connected(server.url, cluster_tls_ca=str(files.authority)) as opened:
            assert opened.problem is None
        with pytest.raises(ClusterUnavailable, match="certificate"):
            await ClusterConnection.open(settings(server.url), "test")


async def test_nkey_and_credentials_file(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    key_file = tmp_path / "user.nk"
    key_file.write_bytes(seed)
    config = tmp_path / "nkey.conf"
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    config.write_text(f'authorization {{ users = [ {{ nkey: "{public}" }} ] }}')
    with running_nats("--config", str(config)) as server:
        async with connected(server.url, cluster_nkey_file=str(key_file)) as opened:
            assert opened.problem is None
        with pytest.raises(ClusterUnavailable, match="refused this machine"):
            await ClusterConnection.open(settings(server.url), "test")
    creds, config = credentials(tmp_path)
    with running_nats("--config", str(config)) as server:
        async with connected(server.url, cluster_creds_file=str(creds)) as opened:
            assert opened.problem is None
        with pytest.raises(ClusterUnavailable, match="refused this machine"):
            await ClusterConnection.open(settings(server.url), "test")


def credentials(folder: Path) -> tuple[Path, Path]:
    """Writes a user's credentials file, and the configuration of a NATS server that accepts the user's
    account.
    """

    def pair(prefix: int) -> tuple[Any, bytes]:
        seed = nkeys.encode_seed(os.urandom(32), prefix)
        return nkeys.from_seed(bytearray(seed)), bytes(seed)

    def token(subject: Any, issuer: Any, kind: str, **claims: Any) -> str:
        body: dict[str, Any] = {
            "iat": 1,
            "iss": issuer.public_key.decode(),
            "name": kind,
            "sub": subject.public_key.decode(),
            "nats": {"type": kind, "version": 2, **claims},
        }
        digest = hashlib.sha256(json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        parts = [encode(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        signed = ".".join(parts)
        return f"{signed}.{encode(issuer.sign(signed.encode()))}"

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    operator, _ = pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, _ = pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, seed = pair(nkeys.PREFIX_BYTE_USER)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    account_token = token(account, operator, "account", limits={**unlimited, "wildcards": True})
    user_token = token(user, account, "user", subs=-1, data=-1, payload=-1)
    file = folder / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    config = folder / "jwt.conf"
    config.write_text(
        f"operator: {token(operator, operator, 'operator')}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {account_token} }}\n"
    )
    return file, config


# --- permissions of the documentation ---


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server with the configuration that docs/scaling.md shows."""
    [text] = re.findall(r"```conf\n(.*?)```", PAGE.read_text(), re.S)
    config = tmp_path_factory.mktemp("nats") / "nats.conf"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FRONT", "WORKER", "STATUS"):
            patch.setenv(f"{name}_PASSWORD", f"{name.lower()}-pw")
        config.write_text(text)
        with running_nats("--config", str(config)) as server:
            yield server


def sign_in(role: str) -> dict[str, str]:
    return {"HUTCH_CLUSTER_USER": role, "HUTCH_CLUSTER_PASSWORD": f"{role}-pw"}


async def test_permissions_suffice_and_a_hostile_worker_learns_and_forges_nothing(
    limited: NatsServer, tmp_path: Path
) -> None:
    seen: list[tuple[str, bytes]] = []
    errors: list[str] = []
    hostile = Client()

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    async def on_message(message: Any) -> None:
        seen.append((message.subject, message.data))

    await hostile.connect(limited.url, user="worker", password="worker-pw", error_cb=on_error)
    for subject in ("hutch.hutch.to.worker.*", "hutch.hutch.fronts"):
        await hostile.subscribe(subject, cb=on_message)
    for subject in ("hutch.hutch.to.front.*", "hutch.hutch.workers", ">"):
        await hostile.subscribe(subject, cb=on_message)
    await hostile.flush()
    await eventually(lambda: len(errors) >= 3)

    with running_worker(limited.url, tmp_path / "worker", **sign_in("worker")):
        user = {"cluster_user": "front", "cluster_password": "front-pw"}
        async with open_front(limited.url, tmp_path / "front", **user) as front:
            assert front.app.front is not None
            inbox = front.app.front.node.subjects.front(front.app.front.node.id)
            answers: list[asyncio.Future[str]] = []

            async def wait() -> str:
                answers.append(asyncio.get_running_loop().create_future())
                return await answers[0]

            code = "const secret = 'confidential-value'; return secret.length + await tools.wait({})"
            running = asyncio.ensure_future(front.run(code, tools=[wait]))
            await eventually(lambda: answers)
            # The hostile client sends every message that it has seen to the front and to all workers,
            # unchanged and changed.
            for _, data in [*seen]:
                for forged in (data, data[:1] + os.urandom(len(data) - 1), b'{"type":"done"}'):
                    await hostile.publish(inbox, forged)
                    await hostile.publish("hutch.hutch.workers", forged)
            await hostile.flush()
            answers[0].set_result("!")
            result = await running
            assert result.result == "18!"
            assert (await front.run("1 + 1")).result == 2
    assert seen
    assert not any(b"confidential-value" in data for _, data in seen)
    assert {subject.split(".")[2] for subject, _ in seen} == {"to", "fronts"}
    denied = len(errors)
    await hostile.publish("hutch.hutch.to.worker.x", b"x")
    await hostile.flush()
    await eventually(lambda: len(errors) > denied)
    await hostile.close()


def test_status_lists_the_machines(limited: NatsServer, tmp_path: Path) -> None:
    env = {"HUTCH_CLUSTER_SECRET": SECRET, **sign_in("status"), "HUTCH_ISOLATION": "container"}
    with running_worker(limited.url, tmp_path / "worker", name="the worker", **sign_in("worker")):
        done = hutch("cluster", "status", "--cluster", limited.url, "--json", env=env)
        assert done.returncode == 0, done.stderr
        [node] = json.loads(done.stdout)["nodes"]
        assert (node["kind"], node["name"], node["state"]) == ("worker", "the worker", "ok")
        assert (node["isolation"], node["places"]["process"]) == ("container", 16)
        assert node["heartbeat_seconds"] < 2.5
        shown = hutch("cluster", "status", "--cluster", limited.url, env=env)
        assert "the worker" in shown.stdout
    nobody = hutch(
        "cluster", "status", "--cluster", limited.url, env={**env, "HUTCH_CLUSTER_SECRET": "x" * 32}
    )
    assert nobody.returncode == 1
    assert "no machine of this cluster has announced itself" in nobody.stderr


# --- several servers ---


async def test_cluster_of_three_servers_survives_the_loss_of_one(tmp_path: Path) -> None:
    routes = [free_port() for _ in range(3)]
    addresses = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
    servers = [
        NatsServer("--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{port}", "--routes", addresses)
        for port in routes
    ]
    for server in servers:
        server.start()
    try:
        urls = [server.url for server in servers]
        answers: list[asyncio.Future[int]] = []

        async def wait() -> int:
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

        with running_worker(",".join(urls[1:]), tmp_path / "worker"):
            async with open_front(",".join(urls[:2]), tmp_path / "front") as front:
                await eventually(lambda: front.workers)
                running = asyncio.ensure_future(front.run("return 1 + await tools.wait({})", tools=[wait]))
                await eventually(lambda: answers)
                servers[1].stop()
                answers[0].set_result(1)
                assert (await running).result == 2
                assert (await front.run("1 + 2")).result == 3
    finally:
        for server in servers:
            server.stop()
