"""Generate the objects of a hostile tenant: every kind that Tidegate watches, with its labels and odd values."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.api import ApiServerClient, RefusedError

Body = dict[str, Any]
Path = tuple[str | int, ...]

MAX_OBJECTS: Final = 12
"""Bound for each kind; beyond it a write deletes one."""
NEVER: Final = "example.com/never"
"""A finalizer that is never removed."""
TEXTS: Final = (
    "",
    "1e90",
    "-1e90",
    "999999999999999999999",
    "1e-90",
    "0",
    "[" * 5_000,
    "{" * 5_000,
    '{"a":' * 1_000,
    "null",
    "true",
    "0-99999999",
    "1-",
    "\u202e\U0001f525",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "169.254.169.254",
    "s3://",
    "file:///../../etc/passwd",
    "x" * 60,
)
NUMBERS: Final = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, 0.5)


@dataclass(frozen=True, slots=True)
class HostileKind:
    """One kind: its path, an object that the API server accepts, and whether the tenant also writes statuses."""

    path: str
    body: Callable[[str], Body]
    with_status: bool = False


def hostile_kinds(namespace: str, victim: str, pool: str) -> Mapping[str, HostileKind]:
    """Return every watched kind in a namespace.

    Its objects name `victim`, another tenant's Inference, and `pool`, where that runs.
    """
    labels = {
        "app.kubernetes.io/managed-by": "tidegate",
        "tidegate.io/inference": victim,
        "tidegate.io/access": victim,
        "tidegate.io/feature-compute": victim,
        "tidegate.io/pipeline": f"{victim}.default",
        "tidegate.io/pool": pool,
        "tidegate.io/slices": "999",
        "tidegate.io/tier": "realtime",
        "tidegate.io/run": "1",
        AUTH_LABEL: AUTH_LABEL_VALUE,
    }
    annotations = {
        "tidegate.io/template": "t",
        "tidegate.io/calls": f"{victim},b",
        "tidegate.io/last-ready-template": "{}",
        "tidegate.io/rolled-back": "{}",
        "tidegate.io/created": "1",
    }
    owner = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "name": victim,
        "uid": "00000000-0000-4000-8000-000000000000",
        "controller": True,
    }

    def metadata(name: str, *, cluster: bool = False) -> Body:
        scope = {} if cluster else {"namespace": namespace, "ownerReferences": [dict(owner)]}
        return {"name": name, "labels": dict(labels), "annotations": dict(annotations), **scope}

    def pod_spec() -> Body:
        requests = {"cpu": "10m", "memory": "1Mi"}
        container = {"name": "triton", "image": "odd", "resources": {"requests": requests}}
        selector = {"tenant": namespace}
        return {"nodeSelector": selector, "containers": [container], "terminationGracePeriodSeconds": 0}

    def template() -> Body:
        return {
            "metadata": {"labels": dict(labels), "annotations": dict(annotations)},
            "spec": {**pod_spec(), "restartPolicy": "Never"},
        }

    def deployment(name: str) -> Body:
        pods = template()
        pods["spec"]["restartPolicy"] = "Always"
        spec = {"replicas": 1, "selector": {"matchLabels": dict(labels)}, "template": pods}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(name), "spec": spec}

    def node(name: str) -> Body:
        body = dict(objects.make_node(0))
        node_labels = {**body["metadata"]["labels"], **labels, "tenant": namespace}
        del node_labels["tidegate.io/simulated"]
        return {**body, "metadata": {"name": name, "labels": node_labels, "annotations": dict(annotations)}}

    def autoscaler(name: str) -> Body:
        target = {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": victim}
        spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 9}
        body = metadata(name)
        body["labels"]["tidegate.io/max-replicas"] = "999"
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": body,
            "spec": spec,
        }

    def our_object(kind: str, spec: Body, *, cluster: bool = False) -> Callable[[str], Body]:
        return lambda name: {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": kind,
            "metadata": metadata(name, cluster=cluster),
            "spec": copy.deepcopy(spec),
        }

    def plain_object(version: str, kind: str, fields: Callable[[], Body]) -> Callable[[str], Body]:
        return lambda name: {"apiVersion": version, "kind": kind, "metadata": metadata(name), **fields()}

    namespace_path = f"/namespaces/{namespace}"
    core, tidegate = f"/api/v1{namespace_path}", f"{objects.API_PATH}{namespace_path}"
    own_pool = {
        "nodeSelector": {"tenant": namespace},
        "slice": {"cpu": {"cpu": "1", "memory": "1Gi"}},
        "policy": {"mode": "Auto"},
    }
    return {
        "Pod": HostileKind(
            f"{core}/pods", plain_object("v1", "Pod", lambda: {"spec": pod_spec()}), with_status=True
        ),
        "Deployment": HostileKind(f"/apis/apps/v1{namespace_path}/deployments", deployment, with_status=True),
        "Job": HostileKind(
            f"/apis/batch/v1{namespace_path}/jobs",
            plain_object("batch/v1", "Job", lambda: {"spec": {"completions": 1, "template": template()}}),
        ),
        "ConfigMap": HostileKind(
            f"{core}/configmaps", plain_object("v1", "ConfigMap", lambda: {"data": {"config.json": "{}"}})
        ),
        "Secret": HostileKind(
            f"{core}/secrets", plain_object("v1", "Secret", lambda: {"stringData": {"key": "k" * 16}})
        ),
        "PodDisruptionBudget": HostileKind(
            f"/apis/policy/v1{namespace_path}/poddisruptionbudgets",
            plain_object(
                "policy/v1",
                "PodDisruptionBudget",
                lambda: {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(labels)}}},
            ),
        ),
        "HorizontalPodAutoscaler": HostileKind(
            f"/apis/autoscaling/v2{namespace_path}/horizontalpodautoscalers", autoscaler
        ),
        "Node": HostileKind("/api/v1/nodes", node, with_status=True),
        "Inference": HostileKind(
            f"{tidegate}/inferences",
            our_object(
                "Inference",
                {
                    "model": {"uri": "file:///models/odd", "version": "1"},
                    "tier": "nearline",
                    "placement": {"pool": namespace},
                    "scaling": {"minReplicas": 0, "maxReplicas": 2},
                    "value": {"perRequest": "1"},
                    "slo": {"latencyP99": "50ms"},
                },
            ),
        ),
        "ModelAccess": HostileKind(
            f"{tidegate}/modelaccesses",
            our_object(
                "ModelAccess",
                {
                    "hosts": [f"{victim}.example.com"],
                    "routes": [
                        {
                            "name": "default",
                            "targets": [{"inference": victim, "weight": 1}],
                            "timeout": "1s",
                        }
                    ],
                },
            ),
        ),
        "FeatureCompute": HostileKind(
            f"{tidegate}/featurecomputes",
            our_object(
                "FeatureCompute",
                {
                    "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
                    "sources": [
                        {"name": "t", "entity": "user", "table": {"uri": "file:///models/t.parquet"}}
                    ],
                    "features": [{"name": "age", "lookup": {"field": "t.age", "type": "int64"}}],
                    "replicas": 1,
                },
            ),
        ),
        "ComputePool": HostileKind(
            f"{objects.API_PATH}/computepools", our_object("ComputePool", own_pool, cluster=True)
        ),
        "ComputeOverride": HostileKind(
            f"{objects.API_PATH}/computeoverrides",
            our_object(
                "ComputeOverride",
                {
                    "target": {"kind": "Inference", "namespace": namespace, "name": victim},
                    "reason": "odd",
                    "expiresAt": _in_an_hour(),
                    "floor": {"replicas": 1},
                },
                cluster=True,
            ),
        ),
        "AllocationDecision": HostileKind(
            f"{objects.API_PATH}/allocationdecisions",
            our_object(
                "AllocationDecision",
                {
                    "pool": namespace,
                    "at": "2026-11-01T00:00:00Z",
                    "mode": "Auto",
                    "solver": "LP",
                    "moves": [
                        {
                            "inference": f"{namespace}/{victim}",
                            "tier": "realtime",
                            "from": 0,
                            "to": 2,
                            "slices": 1,
                        }
                    ],
                    "moveCount": 1,
                },
                cluster=True,
            ),
        ),
    }


def _in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def iter_paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every path in a body, except those that identify the object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        inner_path = (*path, name)
        if inner_path[:2] in {("metadata", "name"), ("metadata", "namespace")} or inner_path in {
            ("apiVersion",),
            ("kind",),
        }:
            continue
        yield inner_path
        yield from iter_paths(inner, inner_path)


def mutate_body(body: Body, choice: random.Random) -> Body:
    """Return a copy with up to three values replaced by odd ones, mostly of the same type."""
    copied = copy.deepcopy(body)
    for _ in range(choice.randint(0, 3)):
        *parents, last = choice.choice([path for path in iter_paths(copied) if len(path) > 1])
        container: Any = copied
        for step in parents:
            container = container[step]
        container[last] = make_odd_value(container[last], choice)
    return copied


def make_odd_value(value: Any, choice: random.Random) -> Any:
    """Return another value, nine times of ten of the same type."""
    if choice.random() < 0.1:
        return choice.choice([None, [], {}, "", 0])
    match value:
        case bool():
            return not value
        case int() | float():
            return choice.choice(NUMBERS)
        case str():
            return choice.choice(TEXTS)
        case list():
            return value + value if choice.random() < 0.5 else []
        case dict():
            return {**value, "odd": choice.choice(TEXTS)}
        case _:
            return choice.choice(TEXTS)


def make_odd_status(kind: str, choice: random.Random) -> Body:
    """Return a status for an object of a kind, as a lying kubelet or controller would write it."""
    number, text = choice.choice(NUMBERS[:4]), choice.choice(TEXTS)
    condition = {"type": "Ready", "status": choice.choice(["True", "False", "Unknown"]), "reason": text[:100]}
    match kind:
        case "Pod":
            address = choice.choice(["10.0.0.9", "127.84.0.2", "fd00::1"])
            ended = {
                "terminated": {"exitCode": 137, "reason": text[:100], "finishedAt": "2026-11-01T00:00:00Z"}
            }
            container = {"name": "triton", "ready": True, "restartCount": number, "image": "", "imageID": ""}
            return {
                "phase": choice.choice(["Running", "Failed", "Pending"]),
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [condition],
                "containerStatuses": [{**container, "lastState": ended}],
            }
        case "Node":
            given = {"cpu": choice.choice(["0", "1", "64", text]), "memory": choice.choice(["1Gi", text])}
            return {"allocatable": given, "capacity": given, "conditions": [condition]}
        case _:
            return {"replicas": number, "readyReplicas": number, "observedGeneration": number}


@dataclass(slots=True)
class HostileTenant:
    """Creates, changes and deletes objects of every watched kind, and counts what the API server accepts."""

    api: ApiServerClient
    kinds: Mapping[str, HostileKind]
    choice: random.Random
    number: int = 0
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    accepted: Counter[str] = field(default_factory=Counter[str])
    rejected: Counter[str] = field(default_factory=Counter[str])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """The API server's message for the last rejected object of a kind."""

    async def write_object(self) -> None:
        """Write one object, or delete one if there are enough."""
        kind = self.choice.choice(list(self.kinds))
        hostile, names = self.kinds[kind], self.names.setdefault(kind, [])
        if len(names) >= MAX_OBJECTS:
            await self._delete_object(hostile, names.pop(self.choice.randrange(len(names))))
            return
        self.number += 1
        name = f"odd-{self.number}"
        body = mutate_body(hostile.body(name), self.choice)
        if self.choice.random() < 0.05:
            body["metadata"]["finalizers"] = [NEVER]
        if await self._was_accepted(kind, "POST", hostile.path, body):
            names.append(name)
            if hostile.with_status:
                status = {"status": make_odd_status(kind, self.choice)}
                await self._was_accepted(f"{kind}/status", "PATCH", f"{hostile.path}/{name}/status", status)

    async def change_metadata(self) -> None:
        """Replace labels and annotations of one object by odd ones."""
        kind = self.choice.choice(list(self.kinds))
        names = self.names.get(kind)
        if not names:
            return
        hostile, name = self.kinds[kind], self.choice.choice(names)
        metadata = mutate_body({"metadata": hostile.body(name)["metadata"]}, self.choice)["metadata"]
        changed = {"metadata": {key: metadata[key] for key in ("labels", "annotations") if key in metadata}}
        await self._was_accepted(f"{kind} changed", "PATCH", f"{hostile.path}/{name}", changed)

    async def delete_cluster_objects(self) -> None:
        """Delete the cluster-scoped objects."""
        for kind in ("Node", "ComputePool", "ComputeOverride", "AllocationDecision"):
            for name in self.names.pop(kind, []):
                await self._delete_object(self.kinds[kind], name)

    def list_unaccepted(self) -> Sequence[str]:
        """Return the kinds of which the API server accepted nothing, with its reasons."""
        return [f"{kind}: {self.reasons.get(kind)}" for kind in self.kinds if not self.accepted[kind]]

    async def _delete_object(self, hostile: HostileKind, name: str) -> None:
        await self._request_rejection("DELETE", f"{hostile.path}/{name}", None)
        await self._request_rejection("PATCH", f"{hostile.path}/{name}", {"metadata": {"finalizers": None}})

    async def _was_accepted(self, counted_as: str, method: str, path: str, body: Body) -> bool:
        reason = await self._request_rejection(method, path, body)
        if reason is None:
            self.accepted[counted_as] += 1
            return True
        self.rejected[counted_as] += 1
        self.reasons[counted_as] = reason
        return False

    async def _request_rejection(self, method: str, path: str, body: Body | None) -> str | None:
        """Send a request; return why it was rejected, or None."""
        try:
            answer = await self.api.call(method, path, body)
            return None if answer is not None else "there is no such object"
        except RefusedError as error:
            return str(error)
