"""`deploy/kubernetes/`: the manifests match the schemas of the Kubernetes API, and the containers in them
work.
"""

from __future__ import annotations

import copy
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate
import pytest
from tests.support.databases import PostgresServer
from tests.support.network.clusters import free_port
from tests.support.network.deployed import DEPLOY, Deployed, deployed, yaml_documents
from tests.support.processes import NO_WARM_RUNNERS, TIMEOUT_SECONDS, wait_until

FOLDER = DEPLOY / "kubernetes"
[KUSTOMIZATION] = yaml_documents(FOLDER / "kustomization.yaml")
MANIFESTS = [each for name in KUSTOMIZATION["resources"] for each in yaml_documents(FOLDER / name)]
WORKLOADS = {
    each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] in ("Deployment", "StatefulSet")
}
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""Kubernetes 1.30 is the oldest version with `appArmorProfile`."""
SECRETS = {
    "nats-passwords": {
        "FRONT_PASSWORD": "front-password",
        "WORKER_PASSWORD": "worker-password",
        "STATUS_PASSWORD": "status-password",
    },
    "hutch-front": {
        "HUTCH_API_KEY": secrets.token_hex(32),
        "HUTCH_MASTER_KEY": b64encode(secrets.token_bytes(32)).decode(),
        "HUTCH_CLUSTER_SECRET": "the secret of this cluster: 0123456789",
    },
    "hutch-worker": {"HUTCH_CLUSTER_SECRET": "the secret of this cluster: 0123456789"},
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_manifest_follows_the_schema(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_misspelled_field_would_be_noticed() -> None:
    wrong = copy.deepcopy(WORKLOADS["hutch-worker"])
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_manifests_have_no_anchors() -> None:
    """Some versions of kustomize do not resolve YAML merge keys, so the manifests must not use anchors."""
    for name in KUSTOMIZATION["resources"]:
        assert "<<:" not in (FOLDER / name).read_text()


def test_manifests_refer_to_each_other() -> None:
    pods = {name: each["spec"]["template"] for name, each in WORKLOADS.items()}
    for name, each in WORKLOADS.items():
        assert each["spec"]["selector"]["matchLabels"] == pods[name]["metadata"]["labels"]
        for container in pods[name]["spec"]["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= {volume["name"] for volume in pods[name]["spec"].get("volumes", ())}
    by_labels = {tuple(pod["metadata"]["labels"].items()): pod for pod in pods.values()}
    for each in MANIFESTS:
        spec = each["spec"]
        if each["kind"] == "Service":
            pod = by_labels[tuple(spec["selector"].items())]
            ports = {
                port["containerPort"]
                for container in pod["spec"]["containers"]
                for port in container["ports"]
            }
            assert {port["port"] for port in spec["ports"]} <= ports
        elif each["kind"] == "HorizontalPodAutoscaler":
            target = WORKLOADS[spec["scaleTargetRef"]["name"]]
            assert spec["scaleTargetRef"]["kind"] == target["kind"]
            assert spec["minReplicas"] <= target["spec"]["replicas"] <= spec["maxReplicas"]
        elif each["kind"] == "PodDisruptionBudget":
            assert tuple(spec["selector"]["matchLabels"].items()) in by_labels
    assert WORKLOADS["nats"]["spec"]["serviceName"] == "nats"
    generated = {each["name"] for each in KUSTOMIZATION["configMapGenerator"]}
    assert pods["nats"]["spec"]["volumes"][0]["configMap"]["name"] in generated


# --- containers as processes ---


def container(workload: str) -> dict[str, Any]:
    [found] = WORKLOADS[workload]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def variables(spec: dict[str, Any]) -> dict[str, str]:
    """Returns the environment variables of a container, including those with the values of secrets."""
    found: dict[str, str] = {}
    for source in spec.get("envFrom", ()):
        found |= SECRETS[source["secretRef"]["name"]]
    for each in spec.get("env", ()):
        if "value" in each:
            found[each["name"]] = each["value"]
        else:
            reference = each["valueFrom"]["secretKeyRef"]
            found[each["name"]] = SECRETS[reference["name"]][reference["key"]]
    return found


class Pods:
    def __init__(self, services: Deployed, ports: dict[str, int]) -> None:
        self.services = services
        self.ports = ports
        self.nats: list[subprocess.Popen[bytes]] = []

    def start(self, postgres_url: str) -> None:
        nats = container("nats")
        for number in range(WORKLOADS["nats"]["spec"]["replicas"]):
            own = {
                "0.0.0.0:6222": f"127.0.0.1:{self.ports[f'routes-{number}']}",
                "--http_port=8222": f"--http_port={self.ports[f'http-{number}']}",
            }
            arguments = [own.get(each, each) for each in nats["args"]]
            arguments = [each.replace("0.0.0.0:6222", own["0.0.0.0:6222"]) for each in arguments]
            address = ["--addr", "127.0.0.1", "--port", str(self.ports[f"nats-{number}"])]
            command = ["nats-server", *arguments, *address]
            self.nats.append(self.services.start(f"nats-{number}", command, variables(nats)))
        front, worker = container("hutch-front"), container("hutch-worker")
        others = {"HUTCH_PORT": str(self.ports["front"]), "HUTCH_DATABASE_URL": postgres_url}
        self.services.start_hutch("front", front["command"], variables(front), **others, **NO_WARM_RUNNERS)
        self.services.start_hutch("worker", worker["command"], variables(worker), **NO_WARM_RUNNERS)

    def answers(self, probe: dict[str, Any], shown_port: int, port: int) -> bool:
        """Returns whether a probe over HTTP succeeds."""
        request = probe["httpGet"]
        assert request["port"] == shown_port
        try:
            # The server must accept the address of the pod as `Host`, because the kubelet sends this address.
            headers = {"Host": f"10.1.2.3:{shown_port}"}
            url = f"http://127.0.0.1:{port}{request['path']}"
            response = httpx2.get(url, headers=headers, timeout=TIMEOUT_SECONDS)
        except httpx2.HTTPError:
            return False
        return 200 <= response.status_code < 400


@pytest.fixture
def pods(postgres: PostgresServer, tmp_path: Path) -> Iterator[Pods]:
    names = [f"{kind}-{number}" for kind in ("nats", "routes", "http") for number in range(3)]
    ports = {name: free_port() for name in (*names, "front")}
    replaced = {"/etc/nats/nats.conf": str(FOLDER / "nats.conf")}
    for number in range(3):
        for shown, kind in ((4222, "nats"), (6222, "routes")):
            replaced[f"nats-{number}.nats:{shown}"] = f"127.0.0.1:{ports[f'{kind}-{number}']}"
    with postgres.database_with_tables() as url, deployed(tmp_path, replaced) as services:
        pods = Pods(services, ports)
        pods.start(url)
        yield pods


def test_probes_of_the_containers_succeed_and_the_cluster_runs_code(pods: Pods) -> None:
    nats, front, worker = container("nats"), container("hutch-front"), container("hutch-worker")
    for kind in ("livenessProbe", "readinessProbe"):
        for number in range(3):
            wait_until(lambda: pods.answers(nats[kind], 8222, pods.ports[f"http-{number}"]))  # noqa: B023
        wait_until(lambda: pods.answers(front[kind], 4111, pods.ports["front"]))  # noqa: B023
        wait_until(lambda: pods.services.check_in("worker", worker[kind]["exec"]["command"]))  # noqa: B023
    headers = {
        "Authorization": f"Bearer {SECRETS['hutch-front']['HUTCH_API_KEY']}",
        "Host": "hutch.example.com",
    }
    url = f"http://127.0.0.1:{pods.ports['front']}"
    with httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS) as client:
        done = client.post("/run", json={"code": "1 + 1"})
        assert (done.status_code, done.json()["result"]) == (200, 2), done.text
        # The server exports the series that the autoscaler reads.
        [scaler] = [each for each in MANIFESTS if each["kind"] == "HorizontalPodAutoscaler"]
        metrics = client.get("/metrics").text
        for each in scaler["spec"]["metrics"]:
            metric = each["external"]["metric"]
            [(label, value)] = metric["selector"]["matchLabels"].items()
            assert f'{metric["name"]}{{{label}="{value}"}}' in metrics
        # The cluster still works when one of the three NATS servers has failed.
        pods.nats[0].kill()
        pods.nats[0].wait(TIMEOUT_SECONDS)
        wait_until(lambda: client.post("/run", json={"code": "1 + 1"}).status_code == 200)
    assert not pods.services.check_in("front", worker["readinessProbe"]["exec"]["command"])
