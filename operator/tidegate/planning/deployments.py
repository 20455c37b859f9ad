"""The Deployment of a workload as planners see it: which template it rolls out, how far it is, and what it remembers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tidegate.resources.names import (
    LAST_READY_ANNOTATION,
    POOL_LABEL,
    ROLLED_BACK_ANNOTATION,
    SOURCE_LABEL,
    TIER_LABEL,
    parse_slices,
)
from tidegate.resources.serving import template_hash

Template = Mapping[str, Any]


class LiveWorkload(Protocol):
    """An object that has pods on slices of a pool: a Deployment, or the Job of a batch."""

    @property
    def replicas(self) -> int:
        """Desired pods."""
        ...

    @property
    def pool(self) -> str:
        """The pool on whose slices they run, as a label has it; empty for none."""
        ...

    @property
    def slices(self) -> int:
        """Slices of each."""
        ...

    @property
    def tier(self) -> str:
        """Their tier."""
        ...


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A rollout that was given up; kept as an annotation of the Deployment, so that no restart forgets it."""

    attempt: str
    """Hash of the spec that asked for it; another one is another attempt."""
    template: str
    """Hash of the pod template whose pods did not become ready."""
    generation: int
    reason: str
    message: str

    def to_json(self) -> str:
        """As the annotation holds it."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The facts about a Deployment that decide about its rollout."""

    template: Template
    complete: bool
    """Every pod is of this template, the rollout has ended well, and at least one pod is ready."""
    overdue: bool
    """Pods of this template exist and have made no progress for the Deployment's progress deadline."""
    last_ready: Template | None = None
    """The template to go back to."""
    given_up: GivenUp | None = None
    replicas: int = 0
    """Pods that it is to have."""
    pool: str = ""
    """The pool on whose slices its pods run; empty for none."""
    slices: int = 0
    """Slices of each pod."""
    tier: str = ""
    """The tier of its pods."""

    @property
    def digest(self) -> str:
        """Hash of the template."""
        return template_hash(self.template)


def template_source(template: Template) -> str:
    """Which ConfigMap the pods of a template read, by its source."""
    return str((template["metadata"].get("labels") or {}).get(SOURCE_LABEL, ""))


def deployment_view(body: Mapping[str, Any]) -> DeploymentView:
    """Reads a Deployment as the API server gives it; annotations that somebody has broken count as absent."""
    metadata, status = body["metadata"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    progress = conditions.get("Progressing", {})
    # The reason of an earlier rollout stays until the new one moves, so it counts only with pods to show for it.
    seen = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    updated = status.get("updatedReplicas", 0)
    ended = progress.get("reason") == "NewReplicaSetAvailable" and updated == status.get("replicas", 0)
    # Those of the template: after a rollout that was given up, the Deployment's own are of the one that is wanted.
    labels = body["spec"]["template"]["metadata"].get("labels") or {}
    return DeploymentView(
        replicas=body["spec"].get("replicas", 1),
        pool=labels.get(POOL_LABEL, ""),
        slices=parse_slices(labels),
        tier=labels.get(TIER_LABEL, ""),
        template=body["spec"]["template"],
        complete=seen and ended and status.get("readyReplicas", 0) > 0,
        overdue=seen and progress.get("reason") == "ProgressDeadlineExceeded" and updated > 0,
        last_ready=_template(annotations.get(LAST_READY_ANNOTATION)),
        given_up=_given_up(annotations.get(ROLLED_BACK_ANNOTATION)),
    )


def _template(text: str | None) -> Template | None:
    value = _json(text)
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return None
    return value if template_hash(value) and isinstance(value.get("spec"), dict) else None


def _given_up(text: str | None) -> GivenUp | None:
    value = _json(text)
    try:
        return GivenUp(**value) if isinstance(value, dict) else None
    except TypeError:
        return None


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
