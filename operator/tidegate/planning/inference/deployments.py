"""Read the live children of a serving object: its Deployment as planners need it, and the ConfigMaps of its pods."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tidegate.api.meta import ObjectKey
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.resources.names import (
    INGESTER_LABEL,
    LAST_READY_ANNOTATION,
    POOL_LABEL,
    ROLLED_BACK_ANNOTATION,
    SOURCE_LABEL,
    TIER_LABEL,
    parse_slices,
)
from tidegate.resources.serving import read_template_hash
from tidegate.resources.serving_pod import DESIRED_FILE

Template = Mapping[str, Any]


class LiveWorkload(Protocol):
    """Object that has pods on slices of a pool: a Deployment, or the Job of a batch."""

    @property
    def replicas(self) -> int:
        """Return the desired number of pods."""
        ...

    @property
    def pool(self) -> str:
        """Return the pool on whose slices they run, from a label; empty for none."""
        ...

    @property
    def slices(self) -> int:
        """Return the slices of each pod."""
        ...

    @property
    def tier(self) -> str:
        """Return the tier of the pods."""
        ...


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """Rollout that made no progress; kept in an annotation of the Deployment, so that a restart keeps it."""

    attempt: str
    """Hash of the spec that asked for it; a spec with another hash is another attempt."""
    template: str
    """Hash of the pod template whose pods did not become ready."""
    generation: int
    reason: str
    message: str

    def to_json(self) -> str:
        """Serialise it for the annotation."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """Facts about a Deployment that decide about its rollout."""

    template: Template
    complete: bool
    """Every pod has this template, the rollout has completed, and at least one pod is ready."""
    deadline_exceeded: bool
    """Pods of this template exist and have made no progress for the Deployment's progress deadline."""
    last_ready: Template | None = None
    """The template to roll back to."""
    failed_rollout: FailedRollout | None = None
    replicas: int = 0
    """Desired number of pods."""
    pool: str = ""
    """The pool on whose slices its pods run; empty for none."""
    slices: int = 0
    """Slices of each pod."""
    tier: str = ""
    """The tier of its pods."""
    name: str = ""
    uid: str = ""
    owner: str = ""
    """The uid of the object that controls it; empty for none."""

    @property
    def digest(self) -> str:
        """Return the hash of the template."""
        return read_template_hash(self.template)


def get_template_source(template: Template) -> str:
    """Return the source of the ConfigMap that the pods of a template read."""
    return str((template["metadata"].get("labels") or {}).get(SOURCE_LABEL, ""))


def parse_deployment(body: Mapping[str, Any]) -> DeploymentView:
    """Parse a Deployment as the API server returns it; invalid annotations count as absent."""
    metadata, status = body["metadata"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    progress = conditions.get("Progressing", {})
    # The reason of an earlier rollout stays until the new one progresses, so it counts only with updated pods.
    is_observed = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    updated = status.get("updatedReplicas", 0)
    rolled_out = progress.get("reason") == "NewReplicaSetAvailable" and updated == status.get("replicas", 0)
    # Labels of the template: after a rollback the Deployment's own labels are those of the failed template.
    labels = body["spec"]["template"]["metadata"].get("labels") or {}
    return DeploymentView(
        replicas=body["spec"].get("replicas", 1),
        pool=labels.get(POOL_LABEL, ""),
        slices=parse_slices(labels),
        tier=labels.get(TIER_LABEL, ""),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        owner=_find_owner(metadata),
        template=body["spec"]["template"],
        complete=is_observed and rolled_out and status.get("readyReplicas", 0) > 0,
        deadline_exceeded=is_observed
        and progress.get("reason") == "ProgressDeadlineExceeded"
        and updated > 0,
        last_ready=_parse_template(annotations.get(LAST_READY_ANNOTATION)),
        failed_rollout=_parse_failed_rollout(annotations.get(ROLLED_BACK_ANNOTATION)),
    )


def _find_owner(metadata: Mapping[str, Any]) -> str:
    owners = metadata.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _parse_template(text: str | None) -> Template | None:
    value = _parse_json(text)
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return None
    return value if read_template_hash(value) and isinstance(value.get("spec"), dict) else None


def _parse_failed_rollout(text: str | None) -> FailedRollout | None:
    value = _parse_json(text)
    try:
        return FailedRollout(**value) if isinstance(value, dict) else None
    except TypeError:
        return None


def _parse_json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def find_start_text(config_maps: Sequence[Mapping[str, Any]], source: str) -> str | None:
    """Return the DesiredState JSON in the ConfigMap of this source; None if there is none."""
    for body in config_maps:
        if _get_source(body) == source:
            return (body.get("data") or {}).get(DESIRED_FILE)
    return None


def delete_stale(
    config_maps: Sequence[Mapping[str, Any]],
    pods: Sequence[PodView],
    source: str,
    retained: Collection[str] = (),
) -> tuple[ObjectDeletion, ...]:
    """Return deletions of the ConfigMaps that no pod reads now, nor may read again (`retained`)."""
    in_use = {pod.source for pod in pods} | {source, *retained}
    return tuple(
        ObjectDeletion(
            "ConfigMap",
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for body in config_maps
        if _get_source(body) not in in_use
    )


def delete_stale_ingesters(
    deployments: Sequence[Mapping[str, Any]], pods: Sequence[PodView], source: str
) -> tuple[ObjectDeletion, ...]:
    """Return deletions of the ingesters whose events no pod reads now."""
    in_use = {pod.source for pod in pods} | {source}
    return tuple(
        ObjectDeletion(
            "Deployment",
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for body in deployments
        if INGESTER_LABEL in (body["metadata"].get("labels") or {}) and _get_source(body) not in in_use
    )


def _get_source(body: Mapping[str, Any]) -> str | None:
    return (body["metadata"].get("labels") or {}).get(SOURCE_LABEL)
