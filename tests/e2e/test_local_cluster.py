"""The local cluster is a real one, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from builders.http_call import call_http, read_page
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from fixtures.installed import Space, wait_for_pod
from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.cluster import ClusterOptions, LocalCluster, Supplies, cgroup_name
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.namespaces import find_supervisors
from tidegate_localcluster.state import ClusterPhase, Forward

PLAIN_POD: Mapping[str, Any] = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "terminationGracePeriodSeconds": 1,
}
RESTRICTED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
SERVE_HTTP = ("python3", "-m", "http.server", "8080", "--directory", "/etc")


@dataclass(frozen=True, slots=True)
class Workbench:
    """A namespace, kubectl and the image whose python3 the test pods run."""

    kubectl: Kubectl
    namespace: str
    image: str

    def container(self, *command: str, name: str = "main", **more: object) -> dict[str, object]:
        return {
            "name": name,
            "image": self.image,
            "command": list(command),
            "securityContext": RESTRICTED,
            **more,
        }

    def pod(self, name: str, *containers: Mapping[str, object], **spec: object) -> None:
        """Create a restricted pod; `annotations` and `labels` go where they belong."""
        metadata = {"name": name, "labels": {"app": name}, "annotations": spec.pop("annotations", {})}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        self.kubectl.apply(
            {**body, "spec": {**PLAIN_POD, "containers": list(containers), **spec}}, namespace=self.namespace
        )

    def ready(self, name: str) -> None:
        wait_for_pod(
            self.namespace,
            name,
            lambda: self.get("pod", name),
            evidence=lambda: self.get("pod", name)["status"],
        )

    def python(self, pod: str, script: str) -> str:
        """What a Python script prints in the pod."""
        return self.kubectl(
            "exec", pod, f"-n{self.namespace}", "-c", "main", "--", "python3", "-c", script
        ).strip()

    def try_python(self, pod: str, script: str) -> str:
        """The same, or nothing where the script fails."""
        run = self.kubectl.run(
            "exec", pod, f"-n{self.namespace}", "-c", "main", "--", "python3", "-c", script
        )
        return run.stdout.strip()

    def get(self, *what: str) -> Any:
        return self.kubectl.json("get", *what, f"--namespace={self.namespace}")


@pytest.fixture
def bench(cluster_kubectl: Kubectl, cluster_namespace: str, cluster_images: Mapping[str, str]) -> Workbench:
    return Workbench(cluster_kubectl, cluster_namespace, cluster_images["operator"])


# -- pods ------------------------------------------------------------------------------------------------------

SIDECAR_ANSWERED = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/hostname').status)"
BY_NAME = (
    "import urllib.request as u; print(u.urlopen('http://front/hostname', timeout=5).read().decode().strip())"
)
# Asks as a resolver does, which would wait for seconds where nobody answers; the answer's code.
UNKNOWN_NAME = r"""
import socket
server = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
    to.settimeout(60)
    header, end = bytes.fromhex("000101000001000000000000"), bytes.fromhex("0000010001")
    to.sendto(header + b"\6nobody\7example\3com" + end, (server, 53))
    print(to.recv(512)[3] & 15)
"""
LIST_PODS = """
import ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
namespace, token = (open(f"{folder}/{name}").read() for name in ("namespace", "token"))
url = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/pods"
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
try:
    print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=f"{folder}/ca.crt")).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_a_restricted_pod_has_what_a_real_cluster_gives_it(bench: Workbench, cluster: LocalCluster) -> None:
    (cluster.files.models / "greeting").write_text("from the host")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    bench.kubectl.apply(claim, namespace=bench.namespace)
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    sidecar = bench.container(*SERVE_HTTP, name="sidecar", restartPolicy="Always", startupProbe=probe)
    # The sidecar answers before the main container starts.
    says = f'python3 -c "{SIDECAR_ANSWERED}"; printf "tidegate_test_gauge 42\\n" > /disk/metrics'
    mounts = [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "models", "mountPath": "/models", "readOnly": True},
    ]
    bench.pod(
        "pod",
        bench.container(
            "sh", "-c", f"{says}; exec python3 -m http.server 9000 --directory /disk", volumeMounts=mounts
        ),
        initContainers=[sidecar],
        volumes=[
            {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
            {"name": "models", "hostPath": {"path": "/models", "type": "Directory"}},
        ],
        annotations={"prometheus.io/scrape": "true", "prometheus.io/port": "9000"},
    )
    here = f"-n{bench.namespace}"
    bench.kubectl("expose", "pod", "pod", "--name=front", "--port=80", "--target-port=8080", here)
    bench.ready("pod")
    spec = bench.get("pod", "pod")["spec"]
    assert 1_000_000 < spec["priority"] < 10_000_000, "no model pushes it from a full machine"
    assert spec["preemptionPolicy"] == "Never"
    wait_until(lambda: bench.kubectl("logs", "pod", "-cmain", here).startswith("200\n"), "it has spoken")
    assert bench.python("pod", "import os; print(os.getuid(), os.access('/', os.W_OK))") == "65532 False"
    assert bench.python("pod", "print(open('/models/greeting').read())") == "from the host"
    wait_until(lambda: bench.try_python("pod", BY_NAME) == "pod", "the Service answers by its name")
    assert bench.python("pod", UNKNOWN_NAME) in {"2", "3", "5"}  # failed, no such name, or refused

    assert bench.python("pod", LIST_PODS) == "403"
    view = ["--clusterrole=view", f"--serviceaccount={bench.namespace}:default", here]
    bench.kubectl("create", "rolebinding", "view", *view)
    wait_until(lambda: bench.python("pod", LIST_PODS) == "200", "the API server grants the pod's request")
    query = f"tidegate_test_gauge%7Bnamespace%3D%22{bench.namespace}%22%7D"
    wait_until(
        lambda: [sample["value"][1] for sample in metrics(cluster, query)] == ["42"], "the gauge is scraped"
    )


def test_a_pod_beyond_its_memory_limit_is_killed(bench: Workbench) -> None:
    hungry = bench.container("python3", "-c", "b'x' * 10**9", resources={"limits": {"memory": "64Mi"}})
    bench.pod("hungry", hungry, restartPolicy="Never")

    def ended() -> Mapping[str, Any]:
        status = bench.get("pod", "hungry")["status"].get("containerStatuses", [{}])[0]
        found: Mapping[str, Any] = status.get("state", {}).get("terminated", {})
        return found

    wait_until(lambda: bool(ended()), "the pod ended")
    # The kernel's SIGKILL. containerd calls it an Error where it hears of the end before it hears of the cause.
    assert ended()["exitCode"] == 128 + signal.SIGKILL
    assert ended()["reason"] in {"OOMKilled", "Error"}


def test_simulated_gpu_nodes_take_what_asks_for_shared_gpus_and_tolerates_them(bench: Workbench) -> None:
    gpu = bench.container("true", resources={"limits": {"nvidia.com/gpu.shared": "1"}})
    sidecar = bench.container("true", name="sidecar", restartPolicy="Always")
    once = bench.container("true", name="once")
    tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]
    # Another test lets the real node offer some for a while.
    simulated = {"tidegate.io/simulated": "true"}
    bench.pod("greedy", gpu, nodeSelector=simulated)
    bench.pod("slice", gpu, nodeSelector=simulated, tolerations=tolerations, initContainers=[sidecar, once])
    bench.ready("slice")
    labels = bench.get("node", bench.get("pod", "slice")["spec"]["nodeName"])["metadata"]["labels"]
    assert labels["nvidia.com/mps.capable"] == "true"
    assert labels["nvidia.com/gpu.sharing-strategy"] == "mps"
    conditions = wait_until(
        lambda: bench.get("pod", "greedy")["status"].get("conditions"), "the scheduler looked at the pod"
    )
    assert conditions[0]["reason"] == "Unschedulable"


# -- the cluster's own parts -----------------------------------------------------------------------------------


def metrics(cluster: LocalCluster, query: str) -> list[Any]:
    url = f"{cluster.read_status()['prometheus']}/api/v1/query?query={query}"
    result: list[Any] = json.loads(read_page(url))["data"]["result"]
    return result


def test_prometheus_scrapes_the_cluster(cluster: LocalCluster) -> None:
    def up() -> dict[str, str]:
        return {sample["metric"]["job"]: sample["value"][1] for sample in metrics(cluster, "up")}

    wait_until(
        lambda: {up().get(job) for job in ("kubelet", "cadvisor", "apiserver")} == {"1"},
        "Prometheus scrapes",
        evidence=up,
    )


def test_the_kubelet_answers_nobody_without_a_name(cluster: LocalCluster) -> None:
    script = (
        "import ssl, urllib.request, urllib.error\n"
        "context = ssl._create_unverified_context()\n"
        "try: urllib.request.urlopen('https://10.87.0.1:10250/pods', context=context)\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    command = cluster.wrap_command([sys.executable, "-c", script])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "401"


def test_the_api_server_asks_for_a_certificate_on_loopback(cluster: LocalCluster) -> None:
    assert cluster.files.kubeconfig.stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(cluster.files.pki / "ca.crt"))
    server = json.loads(cluster.files.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    assert call_http(f"{server}/api", context=context).status == 401


def _descriptors(pid: int) -> set[str]:
    """What each file descriptor of a process leads to; nothing of a process that has just ended."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(descriptor))
    return found


def test_nothing_listens_beyond_loopback(cluster: LocalCluster) -> None:
    namespace = cluster.find_namespaces()
    assert namespace is not None
    sockets = {target for pid in namespace.map_processes().values() for target in _descriptors(pid)}
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        # 0A is LISTEN, the tenth word the inode of the socket.
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in sockets
    ]
    # 0100007F is 127.0.0.1 as the kernel writes it.
    assert len(listening) == len(Forward)
    assert [address for address in listening if not address.startswith("0100007F")] == []


@pytest.mark.parametrize(
    "part",
    [
        "kube-apiserver",
        *(
            pytest.param(part, marks=pytest.mark.slow("the supervisor restarts each part in the same way"))
            for part in (
                *("kubelet-node-0", "containerd-node-0", "etcd", "kube-scheduler", "kube-proxy", "forwards"),
            )
        ),
    ],
)
@pytest.mark.alone("kills parts of the cluster")
def test_a_killed_part_comes_back(
    space: Space, cluster: LocalCluster, cluster_kubectl: Kubectl, part: str
) -> None:
    """It is named and restarted, and an edit made afterwards is served."""
    space.publish("probe", 1)
    space.inference(tier="nearline", replicas=0)
    space.access()
    wait_until(lambda: space.condition("inference", "probe"), "the controllers know the model")
    before = cluster.read_state()
    assert before is not None
    os.kill(pids(cluster)[part], signal.SIGKILL)

    def restarted() -> bool:
        state = cluster.read_state()
        return state is not None and state.parts[part].restarts == before.parts[part].restarts + 1

    wait_until(restarted, f"{part} is restarted")
    wait_until(lambda: phase(cluster) is ClusterPhase.READY, "the cluster is ready again")
    state = cluster.read_state()
    assert state is not None
    assert "SIGKILL" in str(state.parts[part].last_ending)
    looks = ("get", "inference/probe", f"--namespace={space.namespace}")
    wait_until(lambda: cluster_kubectl.run(*looks).returncode == 0, "the API server answers again")
    # Controllers, scheduler, kubelet and xDS servers go on: this takes all of them.
    space.patch("inference", "probe", {"replicas": 1})
    space.ready()
    space.answers(1)


def pids(cluster: LocalCluster) -> Mapping[str, int]:
    found = cluster.read_status()["pids"]
    assert isinstance(found, dict)
    return found


def phase(cluster: LocalCluster) -> ClusterPhase | None:
    state = cluster.read_state()
    return state.phase if state is not None else None


# -- what is left ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """What a cluster could leave behind."""

    mounts: frozenset[str]
    links: frozenset[str]
    cgroups: frozenset[str]

    @classmethod
    def now(cls, cluster: LocalCluster) -> "Machine":
        """What there is at this moment; of cgroups those of `cluster`, since others come and go beside it."""
        tree = CgroupTree.detect()
        assert tree is not None
        return cls(
            mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
            links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            cgroups=frozenset(
                map(str, tree.list_existing_folders(cgroup_name(SECOND.name, cluster.files.path)))
            ),
        )


@pytest.fixture
def second(cluster_supplies: Supplies, tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster beside the session's, not started; ended afterwards."""
    found = LocalCluster(tmp_path / "second")
    yield found
    assert not found.tear_down(print)


@pytest.fixture
def few_supplies(cluster_supplies: Supplies) -> Supplies:
    """Without the images that only Tidegate itself needs."""
    few = {name: cluster_supplies.images[name] for name in ("pause", "coredns")}
    return replace(cluster_supplies, images=few)


SECOND = ClusterOptions(name="second")


def test_two_clusters_run_side_by_side_and_nothing_outlives_a_killed_one(
    cluster: LocalCluster,
    second: LocalCluster,
    few_supplies: Supplies,
    cluster_kubectl: Kubectl,
    tmp_path: Path,
) -> None:
    before = Machine.now(second)
    second.bring_up(SECOND, few_supplies, print)
    inside = second.find_namespaces()
    assert inside is not None
    processes = inside.map_processes()
    assert len(processes) > 10
    # One that runs is left as it is.
    parts = pids(second)
    second.bring_up(SECOND, few_supplies, print)
    assert pids(second) == parts
    kubectl = Kubectl(second.read_plan().binaries["kubectl"], second.files.kubeconfig, tmp_path / "kubectl")
    assert {node["metadata"]["name"] for node in kubectl.json("get", "nodes")["items"]} == {"node-0"}
    assert len(cluster_kubectl.json("get", "nodes")["items"]) > 1
    assert Machine.now(second) != before, (
        "the cgroups of the second cluster are not seen: this test proves nothing"
    )

    # The child of the first process; it starts everything else.
    (child,) = {*find_supervisors(second.files.path)} & {*processes.values()} - {inside.pid}
    os.kill(child, signal.SIGKILL)
    assert inside.wait_until_ended()
    # Those whose parent is outside are there until it has looked.
    wait_until(lambda: not any(map(psutil.pid_exists, processes.values())), "all of its processes are gone")
    assert second.read_status()["state"] == ClusterPhase.STOPPED
    assert not second.tear_down(print)
    assert Machine.now(second) == before
    assert phase(cluster) is ClusterPhase.READY


@pytest.mark.slow("starts a cluster of its own")
def test_pods_of_two_real_nodes_reach_each_other(
    second: LocalCluster, cluster_supplies: Supplies, tmp_path: Path
) -> None:
    images = {name: cluster_supplies.images[name] for name in ("pause", "coredns", "operator")}
    options = ClusterOptions(name="second", nodes=2)
    second.bring_up(options, replace(cluster_supplies, images=images), print)
    kubectl = Kubectl(second.read_plan().binaries["kubectl"], second.files.kubeconfig, tmp_path / "kubectl")
    bench = Workbench(kubectl, "default", images["operator"].ref)
    nodes = ("node-0", "node-1")
    for node in nodes:
        bench.pod(node, bench.container(*SERVE_HTTP), nodeName=node)
        kubectl("expose", "pod", node, f"--name=on-{node}", "--port=80", "--target-port=8080")
    for node in nodes:
        bench.ready(node)
    for node, other in (nodes, reversed(nodes)):
        fetch = (
            "import urllib.request as u; "
            f"print(u.urlopen('http://on-{other}/hostname', timeout=5).read().decode().strip())"
        )
        wait_until(lambda: bench.try_python(node, fetch) == other, f"{node} reaches {other}")  # noqa: B023


@pytest.mark.slow("starts a cluster of its own")
def test_a_cluster_killed_halfway_is_cleaned_by_the_next_up(
    second: LocalCluster, few_supplies: Supplies
) -> None:
    before = Machine.now(second)
    halfway = KilledHalfway(second)
    with pytest.raises(LocalClusterError):
        second.bring_up(SECOND, few_supplies, halfway)
    second.bring_up(SECOND, few_supplies, print)
    assert phase(second) is ClusterPhase.READY
    second.tear_down(print)
    assert Machine.now(second) == before


class KilledHalfway:
    """A progress listener that kills the cluster as soon as something of it runs."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def __call__(self, message: str) -> None:
        namespace = self.cluster.find_namespaces()
        if namespace is not None:
            namespace.kill()
