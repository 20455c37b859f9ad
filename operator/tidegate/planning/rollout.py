"""Replacing pods: Kubernetes' Deployment does it and says when it is stuck; this decides what comes then.

```
ready ──new template──► rolling ──all ready──► ready
                          │ no progress for spec.rollout.progressDeadline
                          └──► rolled back to the last template that was ready, until the spec or the template changes
```

The Deployment itself remembers, in annotations that are written in the same request as the template they are about:
so a crash between any two writes loses nothing, and what was given up once is not tried again by itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.conditions import ObservedCondition
from tidegate.api.inference import Inference, RolloutMode
from tidegate.api.reasons import Reason
from tidegate.planning.deployments import (
    DeploymentView,
    GivenUp,
    Template,
    template_source,
)
from tidegate.planning.pods import PodView
from tidegate.planning.serving_status import PODS_IN_TROUBLE, Verdict
from tidegate.resources.digest import short_digest
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import LAST_READY_ANNOTATION, POOL_LABEL, ROLLED_BACK_ANNOTATION, SLICES_LABEL
from tidegate.resources.serving import template_hash

_NOWHERE: Final = frozenset({Reason.NO_CAPACITY, Reason.UNSCHEDULABLE})
"""No node takes a pod."""
_KNOWN: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the Deployment is to be now."""

    deployment: Manifest | None
    """None leaves what is there."""
    template: str
    """Hash of the template that its pods are to have."""
    given_up: GivenUp | None = None
    """Why it is not the spec's template."""
    last_ready: Template | None = None

    @property
    def sources(self) -> frozenset[str]:
        """Whose ConfigMaps a pod may still start with, besides the spec's."""
        return frozenset({template_source(self.last_ready)} if self.last_ready is not None else ())


_NOT_ABOUT_PODS: Final = {"replicas", "scaling", "value", "slo", "capacity"}
"""Fields of the spec whose change makes no other pod."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to bring the spec's template up."""

    id: str
    generation: int
    trouble: Verdict
    """What keeps its pods at this moment, if anything does."""


def attempt_id(inference: Inference) -> str:
    """Hash of the spec without its number of replicas: an HPA must not start a rollout again that was given up."""
    return short_digest(inference.spec.model_dump(mode="json", exclude=_NOT_ABOUT_PODS))


def plan_rollout(live: DeploymentView | None, wanted: Manifest, attempt: Attempt) -> Rollout:
    """The Deployment to apply: with the spec's template, or with the last one whose pods were ready."""
    digest = template_hash(_template_of(wanted))
    last = _fallback(live, digest)
    if live is None or last is None:
        return Rollout(wanted, digest)
    given_up = _given_up(live, digest, attempt)
    annotations = {LAST_READY_ANNOTATION: _text(last)}
    if given_up is None:
        return Rollout(_with(wanted, annotations, None), digest, last_ready=last)
    annotations[ROLLED_BACK_ANNOTATION] = given_up.to_json()
    return Rollout(_with(wanted, annotations, last), template_hash(last), given_up, last)


def left_alone(live: DeploymentView | None, wanted: Manifest, replicas: int) -> Rollout:
    """The Deployment keeps its pods, since nobody can say what others should look like; at most `replicas` of them."""
    if live is None:
        return Rollout(None, "")
    lowered = _lowered(live, wanted, replicas) if replicas < live.replicas else None
    return Rollout(lowered, live.digest, live.given_up, live.template)


def _lowered(live: DeploymentView, wanted: Manifest, replicas: int) -> Manifest:
    """`wanted` with the pods, the labels and the memory of what is there."""
    metadata: Any = wanted["metadata"]
    spec: Any = wanted["spec"]
    placed = {POOL_LABEL: live.pool, SLICES_LABEL: str(live.slices)} if live.pool else {}
    whole = {
        **wanted,
        "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **placed}},
        "spec": {**spec, "replicas": replicas},
    }
    annotations: dict[str, str] = {}
    if live.last_ready is not None:
        annotations[LAST_READY_ANNOTATION] = _text(live.last_ready)
    if live.given_up is not None:
        annotations[ROLLED_BACK_ANNOTATION] = live.given_up.to_json()
    return _with(whole, annotations, _without_nulls(live.template))


def _fallback(live: DeploymentView | None, digest: str) -> Template | None:
    """The template to go back to while another one comes up; None once the wanted one is up."""
    if live is None or (live.digest == digest and live.complete):
        return None
    found = live.template if live.complete and live.given_up is None else live.last_ready
    return found if found is not None and template_hash(found) != digest else None


def _given_up(live: DeploymentView, digest: str, attempt: Attempt) -> GivenUp | None:
    known = live.given_up
    if known is not None and (known.attempt, known.template) == (attempt.id, digest):
        return known
    if live.digest == digest and live.overdue:
        why = attempt.trouble
        return GivenUp(attempt.id, digest, attempt.generation, why.reason.value, why.message)
    return None


def _template_of(deployment: Manifest) -> Template:
    spec: Any = deployment["spec"]
    template: Template = spec["template"]
    return template


def _with(deployment: Manifest, annotations: Mapping[str, str], template: Template | None) -> Manifest:
    metadata: Any = deployment["metadata"]
    spec: Any = deployment["spec"]
    return {
        **deployment,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}},
        "spec": {**spec, "template": template} if template is not None else spec,
    }


def _text(template: Template) -> str:
    return json.dumps(_without_nulls(template), sort_keys=True, separators=(",", ":"))


def _without_nulls(value: Any) -> Any:
    """The API server writes `creationTimestamp: null` into templates, and refuses it when it is applied."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def rollout_verdict(
    inference: Inference, pods: Sequence[PodView], rollout: Rollout, found: Verdict
) -> Verdict:
    """What the pods' verdict `found` means in a rollout: given up, on its way, or stuck for want of room."""
    if rollout.given_up is not None:
        return _rolled_back(inference, pods, rollout, rollout.given_up)
    alive = [pod for pod in pods if not pod.terminating]
    current = [pod for pod in alive if pod.template == rollout.template]
    leaving = [pod for pod in pods if pod.terminating]
    others = [pod for pod in alive if pod.template != rollout.template and pod.ready]
    if found.reason in _NOWHERE and leaving:
        message = (
            f"pod {leaving[0].key.name} finishes its requests, then its successor takes its place; "
            f"{sum(pod.ready for pod in alive)} of {inference.spec.replicas} replicas are ready"
        )
        return Verdict(False, Reason.DRAINING, message)
    if found.reason is Reason.NO_CAPACITY and others:
        return Verdict(
            False, found.reason, f"{found.message}; {_old_pods(inference, len(current), len(others))}"
        )
    if found.reason in PODS_IN_TROUBLE:
        return Verdict(False, found.reason, found.message + _evictions(inference, alive))
    return found


def _old_pods(inference: Inference, new: int, old: int) -> str:
    placement, resources = inference.spec.placement, inference.spec.own_resources
    asks = (
        f"{placement.slices} slices of pool {placement.pool}"
        if placement is not None
        else f"cpu {resources.cpu} and memory {resources.memory}"
    )
    holds = (
        f"{old} ready pods of the previous template keep serving and hold their places "
        f"(replicas {inference.spec.replicas}, pods {old + new}, each asks for {asks})"
    )
    if inference.spec.rollout.mode is RolloutMode.IN_PLACE:
        return holds
    return (
        f"{holds}: set spec.rollout.mode: InPlace to replace them one by one in their places, "
        "or make room for one pod more"
    )


def _evictions(inference: Inference, alive: Sequence[PodView]) -> str:
    """Who drains a node waits for this; kubectl tells them only that a budget is in the way."""
    ready, wanted = sum(pod.ready for pod in alive), inference.spec.replicas
    if not 0 < ready < wanted:
        return ""
    return (
        f"; {ready} of {wanted} replicas are ready and the PodDisruptionBudget lets one be missing: "
        "evictions of the others are refused until this pod is ready"
    )


def rolled_back(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    """What these conditions say about a rollout that was given up; None when they say nothing."""
    return next((item for item in conditions if item.reason == Reason.ROLLED_BACK.value), None)


def _rolled_back(
    inference: Inference, pods: Sequence[PodView], rollout: Rollout, given_up: GivenUp
) -> Verdict:
    serving = sum(pod.ready and not pod.terminating and pod.template == rollout.template for pod in pods)
    words = f"{given_up.reason}: {given_up.message}" if given_up.reason in _KNOWN else given_up.message
    message = (
        f"the pods of generation {given_up.generation} made no progress for "
        f"{inference.spec.rollout.progress_deadline} ({words}); {serving} of {inference.spec.replicas} replicas "
        "of the last template that was ready serve instead. Correct the spec, or raise spec.rollout.progressDeadline "
        "if the pods were still starting: any change of the spec but spec.replicas is a new attempt"
    )
    return Verdict(False, Reason.ROLLED_BACK, message, stalled=True)
