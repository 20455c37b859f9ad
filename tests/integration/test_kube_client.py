"""The client against a real API server: what it writes, what it answers, and how failures come out."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from builders.inference import inference_body
from builders.waiting import eventually
from fixtures.control_plane import Kubectl
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import ApiUnavailableError, ConflictError, PermanentError
from tidegate.kube.changes import needs_apply
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import EPOCH_ANNOTATION, Fence
from tidegate.kube.field_ownership import was_created
from tidegate.kube.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, INFERENCE, NAMESPACE, Kind
from tidegate.kube.port import ClusterApi, EventNote
from tidegate.kube.store import ObjectStore
from tidegate.planning.plan import EventType
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.runtime.workqueue import WorkQueue
from tidegate_controllers.object_events import report_crash, report_left_out

pytestmark = pytest.mark.usefixtures("crds")

FENCE = Fence.unlimited(7)
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllReplicasReady",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def a_config_map(namespace: str, name: str = "inf-ctr", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "test"}},
        "data": data,
    }


def a_deployment(namespace: str, **changes: Any) -> dict[str, Any]:
    labels = {"app": "test"}
    container = {
        "name": "triton",
        "image": "triton:1",
        "command": ["/bin/sh", "-c", "exec tritonserver"],
        "env": [{"name": "A", "value": ""}],
        "ports": [{"name": "http", "containerPort": 8000}, {"name": "grpc", "containerPort": 8001}],
        "resources": {"limits": {"cpu": "1000m", "memory": "2048Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp", "readOnly": False}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8000}, "periodSeconds": 1},
        "securityContext": {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}},
        **changes,
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}}],
        "automountServiceAccountToken": False,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "inf-ctr", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


async def test_it_is_what_reconcilers_ask_for(client: KubeClient) -> None:
    cluster: ClusterApi = client
    assert await cluster.get(NAMESPACE, ObjectKey("", "default")) is not None


async def test_applying_creates_changes_and_takes_away(client: KubeClient, file_namespace: str) -> None:
    await client.apply(a_config_map(file_namespace, a="1", b="1"), FENCE)
    await client.apply(a_config_map(file_namespace, a="2"), FENCE)
    stored = await client.get(CONFIG_MAP, ObjectKey(file_namespace, "inf-ctr"))
    assert stored is not None
    assert stored["data"] == {"a": "2"}
    assert stored["metadata"]["annotations"][EPOCH_ANNOTATION] == "7"
    assert {entry["manager"] for entry in stored["metadata"]["managedFields"]} == {"tidegate-test"}


async def test_what_was_created_is_settled_and_a_field_of_it_can_be_taken_away(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    key, wanted = ObjectKey(namespace, "inf-ctr"), a_deployment(namespace)
    created = await client.apply_new(wanted, FENCE)
    assert created is not None
    assert was_created(created)
    assert not needs_apply(wanted, created)
    kubectl("label", "deployment/inf-ctr", "team=ads", "--namespace", namespace)
    changed = a_deployment(namespace, env=[])
    assert needs_apply(changed, created)

    ready = await client.take_over(DEPLOYMENT, key, FENCE)

    assert ready is not None
    assert not was_created(ready)
    stored = await client.apply(changed, FENCE)
    assert "env" not in stored["spec"]["template"]["spec"]["containers"][0]
    assert stored["metadata"]["labels"] == {"team": "ads"}, "what somebody else has added stays"
    ours = [entry for entry in stored["metadata"]["managedFields"] if entry["manager"] == "tidegate-test"]
    assert [entry["operation"] for entry in ours] == ["Apply"]


async def test_without_a_take_over_a_field_that_was_created_would_stay(
    client: KubeClient, namespace: str
) -> None:
    """The negative: what `take_over` is for."""
    await client.apply_new(a_deployment(namespace), FENCE)
    stored = await client.apply(a_deployment(namespace, env=[]), FENCE)
    assert stored["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A"}]


async def test_nothing_is_created_over_an_object_of_that_name(client: KubeClient, namespace: str) -> None:
    await client.apply(a_config_map(namespace, a="1"), FENCE)
    assert await client.apply_new(a_config_map(namespace, a="2"), FENCE) is None
    stored = await client.get(CONFIG_MAP, ObjectKey(namespace, "inf-ctr"))
    assert stored is not None
    assert stored["data"] == {"a": "1"}


async def test_what_was_applied_is_not_taken_over_and_what_is_gone_is_nothing(
    client: KubeClient, namespace: str
) -> None:
    applied = await client.apply(a_config_map(namespace, a="1"), FENCE)
    key = ObjectKey(namespace, "inf-ctr")
    assert await client.take_over(CONFIG_MAP, key, FENCE) == applied
    assert await client.take_over(CONFIG_MAP, ObjectKey(namespace, "gone"), FENCE) is None


async def test_an_applied_object_is_settled_however_the_api_server_spells_it(
    client: KubeClient, file_namespace: str
) -> None:
    wanted = a_deployment(file_namespace)
    stored = await client.apply(wanted, FENCE)
    assert not needs_apply(wanted, stored)
    assert needs_apply(a_deployment(file_namespace, image="triton:2"), stored)


async def test_a_field_that_somebody_changed_is_taken_back(
    client: KubeClient, kubectl: Kubectl, file_namespace: str
) -> None:
    wanted = a_deployment(file_namespace)
    await client.apply(wanted, FENCE)
    kubectl("scale", "deployment/inf-ctr", "--replicas=3", "--namespace", file_namespace)
    drifted = await client.get(DEPLOYMENT, ObjectKey(file_namespace, "inf-ctr"))
    assert needs_apply(wanted, drifted)
    assert (await client.apply(wanted, FENCE))["spec"]["replicas"] == 0


async def test_a_list_is_picked_by_label_and_read_in_pages(kubeconfig: Path, namespace: str) -> None:
    settings = ClientSettings(field_manager="tidegate-test", page_size=3)
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig) as client:
        for number in range(7):
            await client.apply(a_config_map(namespace, f"c{number}"), FENCE)
        found = await client.list(CONFIG_MAP, namespace=namespace, selector="app=test")
        assert [item["metadata"]["name"] for item in found] == [f"c{number}" for number in range(7)]


async def test_what_is_not_there_is_none(client: KubeClient, file_namespace: str) -> None:
    key = ObjectKey(file_namespace, "nobody")
    assert await client.get(INFERENCE, key) is None
    assert await client.apply_status(INFERENCE, key, {}, uid="", fence=FENCE) is None
    await client.delete(INFERENCE, key, uid="x", fence=FENCE)


async def test_only_the_object_that_was_meant_is_deleted(client: KubeClient, file_namespace: str) -> None:
    stored = await client.apply(a_config_map(file_namespace), FENCE)
    key = ObjectKey(file_namespace, "inf-ctr")
    await client.delete(CONFIG_MAP, key, uid="another", fence=FENCE)
    assert await client.get(CONFIG_MAP, key) is not None
    await client.delete(CONFIG_MAP, key, uid=stored["metadata"]["uid"], fence=FENCE)
    assert await client.get(CONFIG_MAP, key) is None


async def test_a_status_replaces_ours_and_leaves_that_of_others(
    client: KubeClient, kubectl: Kubectl, file_namespace: str
) -> None:
    stored = await client.apply(
        {**inference_body(), "metadata": {"name": "ctr", "namespace": file_namespace}}, FENCE
    )
    key, uid = ObjectKey(file_namespace, "ctr"), stored["metadata"]["uid"]
    failure = {"version": "2", "reason": "LoadFailed", "message": "no"}
    status: dict[str, Any] = {"replicas": 1, "failure": failure, "conditions": [READY]}
    await client.apply_status(INFERENCE, key, status, uid=uid, fence=FENCE)
    foreign = {"type": "Audited", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kubectl(
        "apply",
        "--server-side",
        "--subresource=status",
        "--field-manager=auditor",
        "--filename=-",
        stdin=(
            f'{{"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "metadata": {{"name": "ctr", '
            f'"namespace": "{file_namespace}"}}, "status": {{"conditions": [{json.dumps(foreign)}]}}}}'
        ),
    )
    merged = {"replicas": 1, "conditions": [READY, foreign]}
    after = await client.apply_status(INFERENCE, key, merged, uid=uid, fence=FENCE)
    assert after is not None
    assert "failure" not in after["status"]
    assert {item["type"] for item in after["status"]["conditions"]} == {"Ready", "Audited"}
    managers = {
        entry["manager"]
        for entry in after["metadata"]["managedFields"]
        if 'k:{"type":"Audited"}' in str(entry["fieldsV1"])
    }
    assert managers == {"auditor"}


async def test_a_status_for_an_object_that_was_replaced_says_so(
    client: KubeClient, file_namespace: str
) -> None:
    await client.apply({**inference_body(), "metadata": {"name": "ctr", "namespace": file_namespace}}, FENCE)
    key = ObjectKey(file_namespace, "ctr")
    assert await client.apply_status(INFERENCE, key, {"replicas": 1}, uid="predecessor", fence=FENCE) is None


async def test_a_refusal_carries_the_api_servers_own_words(client: KubeClient, file_namespace: str) -> None:
    body = {
        **inference_body(model={"uri": "ftp://x"}),
        "metadata": {"name": "ctr", "namespace": file_namespace},
    }
    with pytest.raises(PermanentError, match=r"422 .*spec\.model\.uri: .*must begin with file://"):
        await client.apply(body, FENCE)


async def test_of_two_writers_one_wins(client: KubeClient, file_namespace: str) -> None:
    raced = a_config_map(file_namespace, "raced")
    created = await client.create(CONFIG_MAP, raced)
    with pytest.raises(ConflictError):
        await client.create(CONFIG_MAP, raced)
    await client.replace(CONFIG_MAP, {**created, "data": {"a": "1"}})
    with pytest.raises(ConflictError):
        await client.replace(CONFIG_MAP, {**created, "data": {"a": "2"}})


async def test_an_event_is_shown_when_the_object_is_described(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    stored = await client.apply(
        {**inference_body(), "metadata": {"name": "ctr", "namespace": namespace}}, FENCE
    )
    uid = stored["metadata"]["uid"]
    note = EventNote(
        INFERENCE, ObjectKey(namespace, "ctr"), uid, EventType.WARNING, "LoadFailed", "bad opset"
    )
    await client.create_event(note)
    await client.create_event(note)
    assert len(await client.list(EVENT, namespace=namespace)) == 1
    assert "bad opset" in kubectl("describe", "inference", "ctr", "--namespace", namespace)


@pytest.mark.produces(Reason.OBJECT_LEFT_OUT)
async def test_who_describes_an_object_that_is_left_out_reads_why(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    store = ObjectStore(CONFIG_MAP)
    store.subscribe(lambda key: int(store.get(key)["data"]["count"]))  # type: ignore[index]
    metadata = {"name": "odd", "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"count": "many"}}
    store.observe("ADDED", await client.apply(body, FENCE))
    task = asyncio.create_task(report_left_out(client, (store,), SystemClock()))

    def described() -> str:
        return kubectl("describe", "configmap", "odd", "--namespace", namespace)

    try:
        await eventually(lambda: "ObjectLeftOut" in described(), what="the event")
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert "Tidegate cannot read this ConfigMap" in described()
    assert "ValueError at" in described()
    assert len(await client.list(EVENT, namespace=namespace)) == 1


@pytest.mark.produces(Reason.RECONCILE_CRASHED)
async def test_who_describes_an_object_whose_reconcile_crashes_reads_that_it_is_tried_again(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    store, key, attempts = ObjectStore(CONFIG_MAP), ObjectKey(namespace, "odd"), list[ObjectKey]()

    async def reconcile(key: ObjectKey) -> None:
        attempts.append(key)
        message = f"password {len(attempts)}"
        raise ArithmeticError(message)

    metadata = {"name": key.name, "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    store.observe("ADDED", await client.apply(body, FENCE))
    queue = WorkQueue(
        "inference",
        reconcile,
        clock=SystemClock(),
        metrics=QueueMetrics(CollectorRegistry()),
        report_crash=partial(report_crash, client, store, "inference"),
    )
    task = asyncio.create_task(queue.run())
    try:
        queue.add(key)
        await eventually(lambda: len(attempts) >= 2, what="a second attempt")
    finally:
        queue.stop()
        await task
    described = kubectl("describe", "configmap", key.name, "--namespace", namespace)
    assert "ReconcileCrashed" in described
    assert "unexpected ArithmeticError" in described
    assert "password" not in described
    assert len(await client.list(EVENT, namespace=namespace)) == 1


async def test_an_event_that_cannot_be_written_is_no_error(client: KubeClient) -> None:
    note = EventNote(INFERENCE, ObjectKey("no-such-namespace", "ctr"), "u", EventType.NORMAL, "Loaded", "")
    await client.create_event(note)


async def test_a_kind_without_a_crd_is_unavailable_not_empty(client: KubeClient) -> None:
    """An empty list would look as if everything had been deleted."""
    with pytest.raises(ApiUnavailableError, match="are the CRDs installed"):
        await client.list(Kind("tidegate.io", "v1alpha1", "Nothing", "nothings"))


async def test_a_namespace_that_is_not_there_yet_is_tried_again(client: KubeClient) -> None:
    with pytest.raises(ApiUnavailableError, match="does not exist"):
        await client.apply(a_config_map("no-such-namespace"), FENCE)


async def test_no_credentials_are_said_plainly(tmp_path: Path) -> None:
    settings = ClientSettings(field_manager="x")
    with pytest.raises(PermanentError, match=r"no kubeconfig: .* no pod with a ServiceAccount"):
        await KubeClient.connect(settings)
    with pytest.raises(PermanentError, match="nowhere"):
        await KubeClient.connect(settings, kubeconfig=tmp_path / "nowhere")


async def test_a_server_that_is_not_there_is_unavailable(kubeconfig_to_nowhere: Path) -> None:
    settings = ClientSettings(field_manager="x", request_timeout=timedelta(seconds=2))
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig_to_nowhere) as client:
        with pytest.raises(ApiUnavailableError, match="did not answer"):
            await client.get(NAMESPACE, ObjectKey("", "default"))


@pytest.fixture
def kubeconfig_to_nowhere(tmp_path: Path, kubeconfig: Path) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    moved = tmp_path / "kubeconfig"
    moved.write_text(yaml.safe_dump(config))
    return moved


async def test_a_kubeconfig_that_is_none_is_said_plainly(tmp_path: Path) -> None:
    broken = tmp_path / "kubeconfig"
    broken.write_text("{")
    with pytest.raises(PermanentError, match="cannot read the cluster's address"):
        await KubeClient.connect(ClientSettings(field_manager="x"), kubeconfig=broken)
