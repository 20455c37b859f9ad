"""What caches keep of the objects of other people's kinds: as much as is read of them, and what several have alike only once.

A pod of ours is 15 KiB of JSON, of which two are read; without the rest ten thousand fit where one thousand did.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from tidegate.kube.port import Manifest

_ABSENT: Final = object()
_POD_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
)
_POD_STATUS: Final = ("phase", "reason", "startTime", "podIP", "podIPs")
_POD_CONDITIONS: Final = frozenset({"Ready", "PodScheduled"})
_OCCUPYING: Final = ("nodeName", "overhead", "resources")
_CONTAINER: Final = ("name", "restartPolicy", "resources")
_CONTAINER_STATUS: Final = ("name", "image", "ready", "restartCount")
_CONTAINER_STATES: Final = ("state", "lastState")
_STATES: Final = ("waiting", "terminated")
_DEPLOYMENT_STATUS: Final = ("observedGeneration", "replicas", "updatedReplicas")


def without_managed_fields(body: Manifest) -> Manifest:
    """`body` without the half of it that only the API server reads."""
    metadata: Mapping[str, Any] = body.get("metadata", {})
    if "managedFields" not in metadata:
        return body
    return {**body, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def pod_facts(body: Manifest) -> Manifest:
    """Of a pod of ours: whose it is, where it is, what it asks for, and how it is."""
    status = body.get("status") or {}
    statuses = {
        name: [_container_status(each) for each in status[name]]
        for name in ("containerStatuses", "initContainerStatuses")
        if status.get(name)
    }
    conditions = [each for each in status.get("conditions") or () if each["type"] in _POD_CONDITIONS]
    return {
        "metadata": only(body["metadata"], *_POD_METADATA),
        "spec": occupying(body),
        "status": {**only(status, *_POD_STATUS), "conditions": conditions, **statuses},
    }


def _container_status(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a container waits or has ended; of one that runs, since when is not read."""
    states = {name: only(found[name], *_STATES) for name in _CONTAINER_STATES if found.get(name)}
    return {**only(found, *_CONTAINER_STATUS), **states}


def occupying(body: Manifest) -> Mapping[str, Any]:
    """Of a pod's spec: where it is, and what it asks for."""
    spec: Mapping[str, Any] = body.get("spec") or {}
    containers = {
        name: [only(each, *_CONTAINER) for each in spec[name]]
        for name in ("containers", "initContainers")
        if spec.get(name)
    }
    return {**only(spec, *_OCCUPYING), **containers}


def deployment_facts(body: Manifest) -> Manifest:
    """Of a Deployment of ours: all that was applied, and of its status how far it is, without the times of its conditions."""
    status = body.get("status") or {}
    conditions = [
        {name: each[name] for name in ("type", "status", "reason") if name in each}
        | ({"message": each.get("message", "")} if each["type"] == "ReplicaFailure" else {})
        for each in status.get("conditions") or ()
    ]
    facts = {
        **only(status, *_DEPLOYMENT_STATUS),
        "readyReplicas": min(status.get("readyReplicas", 0), 1),
        "conditions": conditions,
    }
    return {**without_managed_fields(body), "status": facts}


def only(value: Mapping[str, Any] | None, *fields: str) -> dict[str, Any]:
    """These of the fields of `value`, as far as there are any."""
    return {name: value[name] for name in fields if name in value} if value else {}


def sharing(value: Any, like: Any) -> Any:
    """A value that equals `value`, and that consists of parts of `like` wherever these are equal; `value` is JSON.

    Objects that were made from one template then cost little more than what differs between them.
    """
    if isinstance(value, Mapping):
        return _sharing_mapping(cast("Mapping[str, object]", value), like)
    if isinstance(value, list):
        return _sharing_list(cast("list[object]", value), like)
    return like if type(value) is type(like) and value == like else value


def _sharing_mapping(value: Mapping[str, object], like: object) -> Mapping[str, object]:
    others = cast("Mapping[str, object]", like if isinstance(like, Mapping) else {})
    made: dict[str, object] = {}
    same = len(others) == len(value)
    for name, each in value.items():
        other = others.get(name, _ABSENT)
        part = made[sys.intern(name)] = sharing(each, other)
        same = same and part is other
    return others if same else made


def _sharing_list(value: list[object], like: object) -> Sequence[object]:
    others = cast("list[object]", like if isinstance(like, list) else [])
    made = [
        sharing(each, others[number] if number < len(others) else _ABSENT)
        for number, each in enumerate(value)
    ]
    same = len(others) == len(made) and all(ours is theirs for ours, theirs in zip(made, others, strict=True))
    return others if same else made
