"""Objects that a GitOps tool applies stay as it applied them: with the real controllers at work, nothing of ours is in their spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.release import ERRORS
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from fixtures.gitops import ENTRIES, act, actions, entries, health, kstatus
from tidegate.api.meta import API_VERSION

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("controllers")]

EXAMPLES = Path(__file__).parents[2] / "examples"
MANAGER = "argocd-controller"
Body = Mapping[str, Any]


class Applied:
    """What a GitOps tool has applied, server-side and under its own name, and how it stands."""

    def __init__(self, kubectl: Kubectl, namespace: str, manifests: Sequence[Body]) -> None:
        self.kubectl = kubectl
        self.manifests = [_in(namespace, body) for body in manifests]
        self.text = yaml.safe_dump_all(self.manifests)

    def sync(self) -> str:
        return self.kubectl(
            "apply", "--server-side", f"--field-manager={MANAGER}", "--filename=-", stdin=self.text
        )

    def live(self) -> list[dict[str, Any]]:
        found = [self._get(body, "--show-managed-fields") for body in self.manifests]
        assert all(found)
        return found

    def observed(self) -> bool:
        """Whether the controllers have looked at all of them."""
        return all(
            body["status"]["observedGeneration"] == body["metadata"]["generation"] for body in self.live()
        )

    def differences(self) -> str:
        """What `kubectl diff` shows as the tool would see it; empty when there is none."""
        done = self.kubectl.run(
            "diff", "--server-side", f"--field-manager={MANAGER}", "--filename=-", stdin=self.text
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def _get(self, body: Body, *options: str) -> dict[str, Any]:
        metadata = body["metadata"]
        where = [f"--namespace={metadata['namespace']}"] if "namespace" in metadata else []
        found: dict[str, Any] = self.kubectl.json(
            "get", body["kind"].lower(), metadata["name"], *where, *options
        )
        return found


def _in(namespace: str, body: Body) -> dict[str, Any]:
    """In the test's namespace; of a kind without one, with a name of the test's own."""
    metadata = dict(body["metadata"])
    kept = {key: metadata[key] for key in ("annotations", "labels") if key in metadata}
    named = (
        {"name": f"{metadata['name']}-{namespace}"[:63]}
        if body["kind"] in {"ComputePool", "ComputeOverride"}
        else {"name": metadata["name"], "namespace": namespace}
    )
    return {**body, "metadata": {**kept, **named}}


def writers_of(body: Body, part: str) -> set[str]:
    """Who owns a field below `part`."""
    return {
        entry["manager"]
        for entry in body["metadata"]["managedFields"]
        if f"f:{part}" in entry.get("fieldsV1", {})
    }


def examples() -> list[Body]:
    """Objects of ours that the examples apply; those of the simulation are for no cluster."""
    paths = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "simulation"]
    bodies = [body for path in paths for body in yaml.safe_load_all(path.read_text())]
    found = [body for body in bodies if body["apiVersion"] == API_VERSION]
    assert {body["kind"] for body in found} == {"Inference", "ModelAccess", "FeatureCompute"}
    return found


def cluster_wide() -> list[Body]:
    pool = compute_pool_body("drift", policy={"mode": "Auto", "interval": "5s"})
    hold = compute_override_body(
        "drift",
        target={"kind": "ComputePool", "namespace": None, "name": "nobody"},
        hold=True,
        expiresAt="2099-01-01T00:00:00Z",
    )
    return [pool, hold]


def a_model_that_the_allocator_scales(namespace: str) -> Body:
    return inference_body(
        "scaled",
        replicas=None,
        scaling={"minReplicas": 1, "maxReplicas": 4},
        placement={"pool": _in(namespace, cluster_wide()[0])["metadata"]["name"]},
        capacity={"requestsPerSecond": "10"},
    )


def a_releasing_access() -> Body:
    targets = [{"inference": "din", "weight": 100}, {"inference": "v2", "weight": 0}]
    release = {"route": "default", "target": "v2", "steps": [10, 100], "checks": [ERRORS]}
    spec = {"routes": [{"name": "default", "targets": targets}], "release": release}
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "ModelAccess",
        "metadata": {"name": "released"},
        "spec": spec,
    }


@pytest.fixture
def applied(kubectl: Kubectl, namespace: str) -> Callable[..., Applied]:
    def apply(*bodies: Body) -> Applied:
        found = Applied(kubectl, namespace, bodies)
        found.sync()
        return found

    return apply


def test_specs_belong_to_who_applied_them_and_there_is_no_drift(
    applied: Callable[..., Applied], namespace: str
) -> None:
    scaled = a_model_that_the_allocator_scales(namespace)
    everything = applied(*examples(), *cluster_wide(), a_releasing_access(), scaled)
    generations = [body["metadata"]["generation"] for body in everything.live()]
    wait_until(everything.observed, what="the controllers have looked at all", timeout_s=90.0)

    live = everything.live()
    for body in live:
        name = f"{body['kind']} {body['metadata']['name']}"
        assert writers_of(body, "spec") == {MANAGER}, name
        assert MANAGER not in writers_of(body, "status"), name
        assert {each for each in writers_of(body, "status") if each.startswith("tidegate-")}, name
    assert [body["metadata"]["generation"] for body in live] == generations
    # kubectl reads, and then asks what an apply would change: a status that comes in between is none of that.
    wait_until(lambda: everything.differences() == "", what="there is no drift")
    assert "applied" in everything.sync()
    assert [body["metadata"]["generation"] for body in everything.live()] == generations


def test_a_hand_in_the_spec_is_drift(
    applied: Callable[..., Applied], kubectl: Kubectl, namespace: str
) -> None:
    """So that the test above can fail."""
    access = applied(next(body for body in examples() if body["kind"] == "ModelAccess"))
    (body,) = access.live()
    patch = '{"spec": {"hosts": ["ctr.example.com"]}}'
    kubectl("patch", "modelaccess", body["metadata"]["name"], f"-n{namespace}", "--type=merge", f"-p={patch}")
    (body,) = access.live()
    assert writers_of(body, "spec") != {MANAGER}


def test_an_action_of_argo_cd_is_acted_on_and_is_no_drift(
    applied: Callable[..., Applied], kubectl: Kubectl, namespace: str
) -> None:
    access = applied(a_releasing_access())

    def phase() -> str:
        (body,) = access.live()
        return str(body["status"].get("release", {}).get("phase"))

    wait_until(lambda: phase() == "Progressing", what="the release begins")
    (body,) = access.live()
    assert "pause" in actions(body)
    annotations = act(body, "pause")["metadata"]["annotations"]
    changed = yaml.safe_dump({"metadata": {"annotations": annotations}})
    kubectl("patch", "modelaccess", "released", f"-n{namespace}", "--type=merge", f"-p={changed}")
    wait_until(lambda: phase() == "Paused", what="the release is paused")

    wait_until(lambda: access.differences() == "", what="there is no drift")
    access.sync()
    assert phase() == "Paused"
    (body,) = access.live()
    assert body["metadata"]["annotations"]["tidegate.io/release"] == "pause"


def test_the_real_controllers_statuses_are_read_alike(applied: Callable[..., Applied]) -> None:
    """No node is there: a model waits, and one in pools that do not exist, a pool without nodes and an override of nothing need somebody."""
    everything = applied(*examples(), *cluster_wide())
    wait_until(everything.observed, what="the controllers have looked at all", timeout_s=90.0)
    expected = {
        "Inference": ("InProgress", "Progressing"),
        "FeatureCompute": ("InProgress", "Progressing"),
        "ModelAccess": ("InProgress", "Progressing"),
        "ComputePool": ("Failed", "Degraded"),
        "ComputeOverride": ("Failed", "Degraded"),
    }

    def expect(body: Body) -> tuple[str, str]:
        return expected["ComputePool" if "placement" in body.get("spec", {}) else body["kind"]]

    def read() -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
        live = everything.live()
        said = kstatus(*live)
        return [
            (body["kind"], expect(body), (waited, health(body)[0]))
            for body, waited in zip(live, said, strict=True)
        ]

    wait_until(
        lambda: all(wanted == said for _, wanted, said in read()),
        what=f"all are read as they stand: {read()}",
    )


@pytest.fixture
def unseen(kubectl: Kubectl, namespace: str) -> Applied:
    return Applied(kubectl, namespace, [*examples(), *cluster_wide()])


def test_an_object_is_waited_for_from_its_first_moment(unseen: Applied) -> None:
    """What the API server answers to the very write: nobody can have looked."""
    answered = unseen.kubectl.json(
        "apply",
        "--server-side",
        "--dry-run=server",
        f"--field-manager={MANAGER}",
        "--filename=-",
        stdin=unseen.text,
    )["items"]
    assert set(kstatus(*answered)) == {"InProgress"}
    assert {health(body)[0] for body in answered} == {"Progressing"}


def test_the_entries_are_patched_into_what_argo_cd_has(kubectl: Kubectl, namespace: str) -> None:
    """As the how-to says."""
    own = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm"},
        "data": {"url": "mine"},
    }
    kubectl.apply(own, namespace=namespace)
    kubectl("patch", "configmap", "argocd-cm", f"-n{namespace}", f"--patch-file={ENTRIES}")
    found = kubectl.json("get", "configmap", "argocd-cm", f"-n{namespace}")["data"]
    assert found == {"url": "mine", **entries()}
