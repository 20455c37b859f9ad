"""Plan rollouts: the Deployment replaces pods and reports missing progress, this module decides when to roll back.

```
ready ──new template──► rolling ──all ready──► ready
                          │ no progress for spec.rollout.progressDeadline
                          └──► rolled back to the last template that was ready, until the spec or the template changes
```

The state is in annotations of the Deployment, written in the same request as the template that they describe.
So a crash between two writes loses nothing, and a failed template is not retried without a change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.conditions import ObservedCondition
from tidegate.api.inference import Inference, RolloutMode
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import (
    DeploymentView,
    FailedRollout,
    Template,
    get_template_source,
)
from tidegate.planning.inference.serving_status import POD_FAILURE_REASONS, Verdict
from tidegate.planning.pods import PodView
from tidegate.resources.digest import hash_json
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import LAST_READY_ANNOTATION, POOL_LABEL, ROLLED_BACK_ANNOTATION, SLICES_LABEL
from tidegate.resources.serving import read_template_hash

_UNSCHEDULABLE_REASONS: Final = frozenset({Reason.NO_CAPACITY, Reason.UNSCHEDULABLE})
"""Reasons of a pod that fits on no node."""
_REASON_NAMES: Final = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Deployment to apply now, and its pod template."""

    deployment: Manifest | None
    """None keeps the live one."""
    template: str
    """Hash of the desired pod template."""
    failed_rollout: FailedRollout | None = None
    """The failed rollout, if `deployment` does not have the spec's template."""
    last_ready: Template | None = None

    @property
    def sources(self) -> frozenset[str]:
        """Return the sources, besides the spec's, whose ConfigMaps a pod may still start with."""
        return frozenset({get_template_source(self.last_ready)} if self.last_ready is not None else ())


_NON_TEMPLATE_FIELDS: Final = {"replicas", "scaling", "value", "slo", "capacity"}
"""Fields of the spec that do not change the pod template."""


@dataclass(frozen=True, slots=True)
class RolloutAttempt:
    """Attempt to roll out the spec's template."""

    id: str
    generation: int
    problem: Verdict
    """Why its pods are not ready now."""


def hash_attempt(inference: Inference) -> str:
    """Return the hash of the spec without its number of replicas.

    An HPA that changes the replicas must not restart a failed rollout.
    """
    return hash_json(inference.spec.model_dump(mode="json", exclude=_NON_TEMPLATE_FIELDS))


def plan_rollout(live: DeploymentView | None, desired: Manifest, attempt: RolloutAttempt) -> RolloutPlan:
    """Return the Deployment to apply: with the spec's template, or with the last one whose pods were ready."""
    digest = read_template_hash(_get_template(desired))
    last = _find_fallback(live, digest)
    if live is None or last is None:
        return RolloutPlan(desired, digest)
    given_up = _find_failed_rollout(live, digest, attempt)
    annotations = {LAST_READY_ANNOTATION: _serialise_template(last)}
    if given_up is None:
        return RolloutPlan(_patch_deployment(desired, annotations, None), digest, last_ready=last)
    annotations[ROLLED_BACK_ANNOTATION] = given_up.to_json()
    return RolloutPlan(
        _patch_deployment(desired, annotations, last), read_template_hash(last), given_up, last
    )


def keep_template(live: DeploymentView | None, desired: Manifest, replicas: int) -> RolloutPlan:
    """Return a plan that keeps the live pods, because the pod template is unknown.

    It can only scale down, to at most `replicas`.
    """
    if live is None:
        return RolloutPlan(None, "")
    deployment = _scale_down(live, desired, replicas) if replicas < live.replicas else None
    return RolloutPlan(deployment, live.digest, live.failed_rollout, live.template)


def _scale_down(live: DeploymentView, desired: Manifest, replicas: int) -> Manifest:
    """Return `desired` with the pod template, labels and annotations of the live Deployment."""
    metadata: Any = desired["metadata"]
    spec: Any = desired["spec"]
    pool_labels = {POOL_LABEL: live.pool, SLICES_LABEL: str(live.slices)} if live.pool else {}
    deployment = {
        **desired,
        "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **pool_labels}},
        "spec": {**spec, "replicas": replicas},
    }
    annotations: dict[str, str] = {}
    if live.last_ready is not None:
        annotations[LAST_READY_ANNOTATION] = _serialise_template(live.last_ready)
    if live.failed_rollout is not None:
        annotations[ROLLED_BACK_ANNOTATION] = live.failed_rollout.to_json()
    return _patch_deployment(deployment, annotations, _drop_nulls(live.template))


def _find_fallback(live: DeploymentView | None, digest: str) -> Template | None:
    """Return the template to roll back to while a new template rolls out; None once the desired template is ready."""
    if live is None or (live.digest == digest and live.complete):
        return None
    template = live.template if live.complete and live.failed_rollout is None else live.last_ready
    return template if template is not None and read_template_hash(template) != digest else None


def _find_failed_rollout(live: DeploymentView, digest: str, attempt: RolloutAttempt) -> FailedRollout | None:
    failed_rollout = live.failed_rollout
    if failed_rollout is not None and (failed_rollout.attempt, failed_rollout.template) == (
        attempt.id,
        digest,
    ):
        return failed_rollout
    if live.digest == digest and live.deadline_exceeded:
        problem = attempt.problem
        return FailedRollout(attempt.id, digest, attempt.generation, problem.reason.value, problem.message)
    return None


def _get_template(deployment: Manifest) -> Template:
    spec: Any = deployment["spec"]
    template: Template = spec["template"]
    return template


def _patch_deployment(
    deployment: Manifest, annotations: Mapping[str, str], template: Template | None
) -> Manifest:
    metadata: Any = deployment["metadata"]
    spec: Any = deployment["spec"]
    return {
        **deployment,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}},
        "spec": {**spec, "template": template} if template is not None else spec,
    }


def _serialise_template(template: Template) -> str:
    return json.dumps(_drop_nulls(template), sort_keys=True, separators=(",", ":"))


def _drop_nulls(value: Any) -> Any:
    """Return `value` without nulls: the API server writes `creationTimestamp: null` and rejects it in an apply."""
    if isinstance(value, Mapping):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return value


def judge_rollout(
    inference: Inference, pods: Sequence[PodView], rollout: RolloutPlan, pods_verdict: Verdict
) -> Verdict:
    """Return what the pods' verdict means during a rollout: rolled back, in progress, or out of resources."""
    if rollout.failed_rollout is not None:
        return _judge_rolled_back(inference, pods, rollout, rollout.failed_rollout)
    alive = [pod for pod in pods if not pod.terminating]
    current = [pod for pod in alive if pod.template == rollout.template]
    terminating = [pod for pod in pods if pod.terminating]
    old_ready = [pod for pod in alive if pod.template != rollout.template and pod.ready]
    if pods_verdict.reason in _UNSCHEDULABLE_REASONS and terminating:
        message = (
            f"pod {terminating[0].key.name} finishes its requests, then its successor takes its place; "
            f"{sum(pod.ready for pod in alive)} of {inference.spec.replicas} replicas are ready"
        )
        return Verdict(False, Reason.DRAINING, message)
    if pods_verdict.reason is Reason.NO_CAPACITY and old_ready:
        return Verdict(
            False,
            pods_verdict.reason,
            f"{pods_verdict.message}; {_describe_old_pods(inference, len(current), len(old_ready))}",
        )
    if pods_verdict.reason in POD_FAILURE_REASONS:
        return Verdict(
            False, pods_verdict.reason, pods_verdict.message + _describe_evictions(inference, alive)
        )
    return pods_verdict


def _describe_old_pods(inference: Inference, new: int, old: int) -> str:
    placement, resources = inference.spec.placement, inference.spec.own_resources
    requests = (
        f"{placement.slices} slices of pool {placement.pool_names}"
        if placement is not None
        else f"cpu {resources.cpu} and memory {resources.memory}"
    )
    situation = (
        f"{old} ready pods of the previous template keep serving and hold their places "
        f"(replicas {inference.spec.replicas}, pods {old + new}, each asks for {requests})"
    )
    if inference.spec.rollout.mode is RolloutMode.IN_PLACE:
        return situation
    return (
        f"{situation}: set spec.rollout.mode: InPlace to replace them one by one in their places, "
        "or make room for one pod more"
    )


def _describe_evictions(inference: Inference, alive: Sequence[PodView]) -> str:
    """Return what blocks evictions while some replicas are not ready, else an empty string.

    A person who drains a node waits for this, and kubectl shows only that a budget rejects the eviction.
    """
    ready, desired = sum(pod.ready for pod in alive), inference.spec.replicas
    if not 0 < ready < desired:
        return ""
    return (
        f"; {ready} of {desired} replicas are ready and the PodDisruptionBudget allows one unavailable pod: "
        "evictions of the others are refused until this pod is ready"
    )


def find_rolled_back(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    """Return the condition that reports a rollback; None if there is none."""
    return next((item for item in conditions if item.reason == Reason.ROLLED_BACK.value), None)


def _judge_rolled_back(
    inference: Inference, pods: Sequence[PodView], rollout: RolloutPlan, failed_rollout: FailedRollout
) -> Verdict:
    serving = sum(pod.ready and not pod.terminating and pod.template == rollout.template for pod in pods)
    cause = (
        f"{failed_rollout.reason}: {failed_rollout.message}"
        if failed_rollout.reason in _REASON_NAMES
        else failed_rollout.message
    )
    message = (
        f"the pods of generation {failed_rollout.generation} made no progress for "
        f"{inference.spec.rollout.progress_deadline} ({cause}); {serving} of {inference.spec.replicas} replicas "
        "of the last template that was ready serve instead. Correct the spec, or raise spec.rollout.progressDeadline "
        "if the pods were still starting: any change of the spec but spec.replicas is a new attempt"
    )
    return Verdict(False, Reason.ROLLED_BACK, message, stalled=True)
