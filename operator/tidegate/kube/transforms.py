"""Reduces objects to the fields that are read before a cache keeps them, and shares equal parts between objects.

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
_POD_SPEC: Final = ("nodeName", "overhead", "resources")
_CONTAINER: Final = ("name", "restartPolicy", "resources")
_CONTAINER_STATUS: Final = ("name", "image", "ready", "restartCount")
_CONTAINER_STATES: Final = ("state", "lastState")
_STATES: Final = ("waiting", "terminated")
_DEPLOYMENT_STATUS: Final = ("observedGeneration", "replicas", "updatedReplicas")


def drop_managed_fields(body: Manifest) -> Manifest:
    """Return `body` without managedFields, which are half of it and which only the API server reads."""
    metadata: Mapping[str, Any] = body.get("metadata", {})
    if "managedFields" not in metadata:
        return body
    return {**body, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def trim_pod(body: Manifest) -> Manifest:
    """Return a pod of ours with its metadata, node, resource requests and state."""
    status = body.get("status") or {}
    statuses = {
        name: [_trim_container_status(container) for container in status[name]]
        for name in ("containerStatuses", "initContainerStatuses")
        if status.get(name)
    }
    conditions = [
        condition for condition in status.get("conditions") or () if condition["type"] in _POD_CONDITIONS
    ]
    return {
        "metadata": select_fields(body["metadata"], *_POD_METADATA),
        "spec": trim_pod_spec(body),
        "status": {**select_fields(status, *_POD_STATUS), "conditions": conditions, **statuses},
    }


def _trim_container_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container's status with its waiting and terminated states, without the start time of a running one."""
    states = {name: select_fields(status[name], *_STATES) for name in _CONTAINER_STATES if status.get(name)}
    return {**select_fields(status, *_CONTAINER_STATUS), **states}


def trim_pod_spec(body: Manifest) -> Mapping[str, Any]:
    """Return the node and the resource requests of a pod's spec."""
    spec: Mapping[str, Any] = body.get("spec") or {}
    containers = {
        name: [select_fields(container, *_CONTAINER) for container in spec[name]]
        for name in ("containers", "initContainers")
        if spec.get(name)
    }
    return {**select_fields(spec, *_POD_SPEC), **containers}


def trim_deployment(body: Manifest) -> Manifest:
    """Return a Deployment of ours with what was applied and the progress of its rollout, without condition times."""
    status = body.get("status") or {}
    conditions = [
        {name: condition[name] for name in ("type", "status", "reason") if name in condition}
        | ({"message": condition.get("message", "")} if condition["type"] == "ReplicaFailure" else {})
        for condition in status.get("conditions") or ()
    ]
    facts = {
        **select_fields(status, *_DEPLOYMENT_STATUS),
        "readyReplicas": min(status.get("readyReplicas", 0), 1),
        "conditions": conditions,
    }
    return {**drop_managed_fields(body), "status": facts}


def select_fields(mapping: Mapping[str, Any] | None, *fields: str) -> dict[str, Any]:
    """Return those of the named fields that `mapping` has."""
    return {name: mapping[name] for name in fields if name in mapping} if mapping else {}


def share_equal_parts(value: Any, like: Any) -> Any:
    """Return a value that equals `value` and consists of parts of `like` wherever these are equal; `value` is JSON.

    Objects that were made from one template then cost little more memory than their differences.
    """
    if isinstance(value, Mapping):
        return _share_mapping(cast("Mapping[str, object]", value), like)
    if isinstance(value, list):
        return _share_list(cast("list[object]", value), like)
    return like if type(value) is type(like) and value == like else value


def _share_mapping(value: Mapping[str, object], like: object) -> Mapping[str, object]:
    like_fields = cast("Mapping[str, object]", like if isinstance(like, Mapping) else {})
    result: dict[str, object] = {}
    same = len(like_fields) == len(value)
    for name, field_value in value.items():
        like_value = like_fields.get(name, _ABSENT)
        part = result[sys.intern(name)] = share_equal_parts(field_value, like_value)
        same = same and part is like_value
    return like_fields if same else result


def _share_list(value: list[object], like: object) -> Sequence[object]:
    like_items = cast("list[object]", like if isinstance(like, list) else [])
    result = [
        share_equal_parts(item, like_items[number] if number < len(like_items) else _ABSENT)
        for number, item in enumerate(value)
    ]
    same = len(like_items) == len(result) and all(
        result_item is like_item for result_item, like_item in zip(result, like_items, strict=True)
    )
    return like_items if same else result


def trim_secret(body: Manifest) -> Manifest:
    """Return a Secret without annotations, which may contain a copy of it: `kubectl apply` adds one."""
    metadata: Mapping[str, Any] = body["metadata"]
    metadata_fields = {
        name: metadata[name] for name in ("namespace", "name", "resourceVersion", "uid") if name in metadata
    }
    return {"metadata": metadata_fields, "data": body.get("data") or {}}
