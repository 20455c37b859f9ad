"""The files of a cluster, what is written into them, and what is said about them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tidegate_localcluster import addons, cluster, discovery, forwards, simulated_nodes
from tidegate_localcluster.api_client import ApiClient, has_condition
from tidegate_localcluster.cli import app
from tidegate_localcluster.cluster import LocalCluster, cgroup_name
from tidegate_localcluster.errors import LocalClusterError, NotReadyError
from tidegate_localcluster.leftovers import Leftovers
from tidegate_localcluster.readiness import ReadinessRequirement, list_requirements, wait_for_requirement
from tidegate_localcluster.state import (
    ClusterPhase,
    ClusterPlan,
    ClusterState,
    Forward,
    Image,
    PartState,
    StateDir,
)
from tidegate_localcluster.supervisor import open_volumes, prepare_audit
from tidegate_localcluster.supplies import find_source_root

VALUES = {
    "DNS_ADDRESS": "10.96.0.10",
    "COREDNS_IMAGE": "tidegate.local/coredns:1",
    "PROMETHEUS_IMAGE": "tidegate.local/prometheus:1",
    "DISCOVERY_URL": "http://10.87.0.1:9099",
    "APISERVER": "10.87.0.1:6443",
    **addons.load_prometheus_rules(find_source_root()),
}


def a_plan(**more: Any) -> ClusterPlan:
    image = Image(ref="tidegate.local/coredns:1", archive=Path("/x.tar"))
    return ClusterPlan(
        name="a", cgroup="tidegate-a", images={"coredns": image}, ports={Forward.APISERVER: 4711}, **more
    )


# -- documents -------------------------------------------------------------------------------------------------


def test_documents_survive_being_written(tmp_path: Path) -> None:
    state = ClusterState(
        phase=ClusterPhase.DEGRADED,
        message="x",
        parts={"etcd": PartState(pid=7, restarts=2, last_ending="killed")},
    )
    plan = a_plan(nodes=2)
    state.write(tmp_path / "state.json")
    plan.write(tmp_path / "plan.json")
    assert ClusterState.read(tmp_path / "state.json") == state
    assert ClusterPlan.read(tmp_path / "plan.json") == plan
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "state.json"]


def test_a_document_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert ClusterPlan.read(tmp_path / "plan.json") is None


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"name":')
    with pytest.raises(LocalClusterError, match=r"plan\.json is damaged"):
        ClusterPlan.read(tmp_path / "plan.json")


def test_clusters_of_one_name_have_different_cgroups() -> None:
    assert cgroup_name("a", Path("/one")) != cgroup_name("a", Path("/two"))
    assert cgroup_name("a", Path("/one")).startswith("tidegate-a-")


def test_an_audit_log_is_written_by_the_policy_that_was_asked_for_and_else_there_is_none(
    tmp_path: Path,
) -> None:
    files = StateDir(tmp_path)
    assert prepare_audit(files, a_plan()) is None
    files.logs.mkdir()
    files.audit_log.write_text("of the cluster before\n")
    found = prepare_audit(files, a_plan(audit_policy="kind: Policy\n"))
    assert found is not None
    assert found.policy.read_text() == "kind: Policy\n"
    assert (found.log, found.log.exists()) == (files.audit_log, False)


# -- what others read ------------------------------------------------------------------------------------------


def test_a_cluster_that_was_never_started_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="`tidegate local up` makes one"):
        LocalCluster(tmp_path).read_status()


def test_the_status_of_a_stopped_cluster_promises_no_address(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    a_plan().write(files.plan)
    status = LocalCluster(tmp_path).read_status()
    assert status["state"] == "Stopped"
    assert status["gateway"] == {"grpc": None, "http": None}
    assert status["dashboard"] is status["prometheus"] is None
    assert status["pids"] == {}
    assert status["images"] == {"coredns": "tidegate.local/coredns:1"}
    assert status["models"] == str(tmp_path / "models")


def test_addresses_appear_with_their_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StateDir(tmp_path)
    a_plan().model_copy(update={"ports": {forward: 1000 + n for n, forward in enumerate(Forward)}}).write(
        files.plan
    )
    ClusterState(phase=ClusterPhase.READY).write(files.state)
    monkeypatch.setattr(LocalCluster, "find_supervisor", lambda _: 1)
    monkeypatch.setattr(LocalCluster, "find_namespaces", lambda _: None)
    monkeypatch.setattr(
        cluster.ApiClient,
        "as_administrator",
        lambda *_: FakeApi({forwards.SERVICE_PORTS[Forward.GATEWAY].api_path: {}}),
    )
    status = LocalCluster(tmp_path).read_status()
    assert status["gateway"] == {"grpc": "127.0.0.1:1001", "http": "http://127.0.0.1:1001"}
    assert status["dashboard"] is None


def test_volumes_are_opened_although_one_is_deleted_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "a-deleted").symlink_to(tmp_path / "nowhere")  # listed, and not found when it is looked at
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o750)
    open_volumes(tmp_path)
    assert volume.stat().st_mode & 0o777 == 0o777


def test_remains_are_true_when_there_is_something() -> None:
    assert not Leftovers()
    found = Leftovers(processes=(7,), cgroups=(Path("/sys/fs/cgroup/pids/a"),))
    assert found
    assert str(found) == "processes: 7; cgroups: /sys/fs/cgroup/pids/a"


def test_forwards_lead_to_services_by_absolute_names() -> None:
    assert forwards.resolve_target(Forward.APISERVER) == "10.87.0.1:6443"
    assert (
        forwards.resolve_target(Forward.GATEWAY) == "tidegate-gateway.tidegate-system.svc.cluster.local.:8080"
    )


# -- the command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "a" * 31, ""])
def test_an_unfit_name_is_refused(name: str) -> None:
    result = CliRunner().invoke(app, ["down", "--name", name])
    assert result.exit_code != 0
    assert "is not a name" in result.output


def test_a_question_about_no_cluster_ends_with_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--state-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("tidegate local: there is no cluster in")


def test_an_unknown_log_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "kubelet-node-0.log").write_text("hello\n")
    run = CliRunner()
    assert (
        "there are: kubelet-node-0"
        in run.invoke(app, ["logs", "kubelet", "--state-dir", str(tmp_path)]).output
    )
    assert run.invoke(app, ["logs", "--state-dir", str(tmp_path)]).output == "kubelet-node-0\n"
    assert (
        run.invoke(app, ["logs", "kubelet-node-0", "--state-dir", str(tmp_path)]).stdout_bytes == b"hello\n"
    )


# -- manifests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coredns", "prometheus", "storage", "simulation", "stages"])
def test_manifests_have_all_their_placeholders_filled(name: str) -> None:
    text = addons.render_manifest(name, VALUES) if name != "stages" else addons.read_manifest(name)
    objects = [found for found in yaml.safe_load_all(text) if found]
    assert objects
    assert all({"apiVersion", "kind", "metadata"} <= found.keys() for found in objects)
    assert "${" not in text


def test_the_pods_of_the_cluster_itself_are_restricted() -> None:
    for name in ("coredns", "prometheus"):
        for found in yaml.safe_load_all(addons.render_manifest(name, VALUES)):
            if found["kind"] != "Deployment":
                continue
            spec = found["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in spec["containers"]:
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_prometheus_is_told_where_to_ask() -> None:
    objects = {
        found["kind"]: found for found in yaml.safe_load_all(addons.render_manifest("prometheus", VALUES))
    }
    scrapes = yaml.safe_load(objects["ConfigMap"]["data"]["prometheus.yml"])["scrape_configs"]
    assert {job["job_name"] for job in scrapes} == {"pods", "kubelet", "cadvisor", "apiserver"}


def test_prometheus_has_the_rules_of_the_chart() -> None:
    objects = {
        found["kind"]: found for found in yaml.safe_load_all(addons.render_manifest("prometheus", VALUES))
    }
    files = find_source_root() / "charts" / "tidegate" / "files"
    for name in ("rules", "alerts"):
        assert (
            objects["ConfigMap"]["data"][f"tidegate-{name}.yaml"]
            == (files / f"prometheus-{name}.yaml").read_text()
        )


def test_a_placeholder_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="DNS_ADDRESS"):
        addons.render_manifest("coredns", {})


# -- simulated nodes and discovery -----------------------------------------------------------------------------


def test_simulated_nodes_offer_shared_gpus_and_keep_other_pods_away() -> None:
    node: Any = simulated_nodes.make_simulated_gpu_node(3)
    assert node["metadata"]["name"] == "gpu-sim-3"
    assert node["status"]["allocatable"]["nvidia.com/gpu.shared"] == "32"
    assert node["spec"]["taints"][0]["effect"] == "NoSchedule"
    assert "tidegate.io/local" not in node["metadata"]["labels"]


def a_pod(annotations: Mapping[str, str], **status: Any) -> Mapping[str, Any]:
    labels = {"tidegate.io/inference": "din", "app": "x"}
    metadata = {"name": "p", "namespace": "n", "annotations": annotations, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": "node-0"}, "status": {"podIP": "10.88.0.7", **status}}


def test_an_annotated_pod_is_a_target_with_our_labels() -> None:
    (target,) = discovery.find_pod_targets(
        [a_pod({"prometheus.io/scrape": "true", "prometheus.io/port": "8002"})]
    )
    assert target == {
        "targets": ["10.88.0.7:8002"],
        "labels": {
            "__metrics_path__": "/metrics",
            "namespace": "n",
            "pod": "p",
            "node": "node-0",
            "tidegate_io_inference": "din",
        },
    }


@pytest.mark.parametrize(
    "pod",
    [
        a_pod({}),
        a_pod({"prometheus.io/scrape": "true"}),
        a_pod({"prometheus.io/scrape": "false", "prometheus.io/port": "1"}),
        a_pod({"prometheus.io/scrape": "true", "prometheus.io/port": "metrics"}),
        a_pod({"prometheus.io/scrape": "true", "prometheus.io/port": "1"}, podIP=None),
    ],
)
def test_other_pods_are_no_targets(pod: Mapping[str, Any]) -> None:
    assert discovery.find_pod_targets([pod]) == ()


def test_real_nodes_are_scraped_on_the_kubelets_port() -> None:
    addresses = [{"type": "Hostname", "address": "node-0"}, {"type": "InternalIP", "address": "10.87.0.1"}]
    (target,) = discovery.find_node_targets(
        [{"metadata": {"name": "node-0"}, "status": {"addresses": addresses}}]
    )
    assert target == {"targets": ["10.87.0.1:10250"], "labels": {"node": "node-0"}}


# -- readiness -------------------------------------------------------------------------------------------------


class FakeApi(ApiClient):
    """An API server with these objects and texts."""

    def __init__(
        self, objects: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str] | None = None
    ) -> None:
        self.objects, self.texts = objects, texts or {}

    def close(self) -> None:
        """Nothing is open."""

    def get(self, path: str) -> dict[str, Any] | None:
        found = self.objects.get(path)
        return None if found is None else dict(found)

    def get_text(self, path: str) -> str | None:
        return self.texts.get(path)


def conditions(kind: str, status: str) -> Mapping[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status}]}}


def test_a_condition_counts_only_when_true() -> None:
    assert has_condition(dict(conditions("Ready", "True")), "Ready")
    assert not has_condition(dict(conditions("Ready", "Unknown")), "Ready")
    assert not has_condition({}, "Ready")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (a_plan(), ["node-0 is Ready", "coredns is Available"]),
        (
            a_plan(nodes=2, simulated_gpu_nodes=1),
            ["gpu-sim-0 is Ready", "node-0 is Ready", "node-1 is Ready", "coredns is Available"],
        ),
        (a_plan(control_plane_only=True, simulated_gpu_nodes=1), ["gpu-sim-0 is Ready"]),
    ],
)
def test_a_cluster_is_ready_when_all_it_was_asked_for_is(plan: ClusterPlan, expected: list[str]) -> None:
    assert [requirement.description for requirement in list_requirements(plan)] == expected


def a_requirement() -> ReadinessRequirement:
    return ReadinessRequirement("coredns is Available", "/coredns", "Available", "/pods")


def test_what_holds_is_not_waited_for() -> None:
    wait_for_requirement(
        a_requirement(), FakeApi({"/coredns": conditions("Available", "True")}), (), timeout_s=0.0
    )


def test_what_does_not_become_ready_is_explained_by_its_pods() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    statuses = [{"name": "main", "state": waiting}]
    pod = {"metadata": {"name": "coredns-x"}, "status": {"phase": "Running", "containerStatuses": statuses}}
    api = FakeApi(
        {"/pods": {"items": [pod]}}, {"/pods/coredns-x/log?container=main&tailLines=10": "panic: no\n"}
    )
    with pytest.raises(NotReadyError) as raised:
        wait_for_requirement(a_requirement(), api, (), timeout_s=0.0)
    assert "until coredns is Available" in str(raised.value)
    assert "container main is waiting: CrashLoopBackOff back-off 10s" in str(raised.value)
    assert "panic: no" in str(raised.value)


def test_a_server_that_does_not_answer_yet_is_waited_for() -> None:
    answers = iter([OSError("refused"), conditions("Available", "True")])
    api = FakeApi({})
    api.get = _raising(lambda: next(answers))  # type: ignore[method-assign]
    wait_for_requirement(a_requirement(), api, (), timeout_s=10.0)


def _raising(take: Callable[[], OSError | Mapping[str, Any]]) -> Callable[[str], dict[str, Any] | None]:
    def get(path: str) -> dict[str, Any] | None:
        answer = take()
        if isinstance(answer, OSError):
            raise answer
        return dict(answer)

    return get
