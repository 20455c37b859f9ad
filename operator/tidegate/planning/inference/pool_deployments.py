"""Plan the Deployments of an Inference: one, or one for each of several pools, and those of pools that it has left.

The Deployment with the bare name stays with the pool whose pods it has, wherever that pool is in the list. So a second pool, or
another order, restarts no pod.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import DeploymentView, get_template_source
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.replicas import with_replicas
from tidegate.planning.inference.rollout import (
    RolloutAttempt,
    RolloutPlan,
    hash_attempt,
    judge_rollout,
    keep_template,
    plan_rollout,
)
from tidegate.planning.inference.serving_status import Verdict, judge_compilers, judge_pods, suggest_remedy
from tidegate.planning.inference.version_swap import SwapPlan
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.inference import (
    PoolPods,
    build_pool_deployment,
    hash_source,
    make_inference_selector,
)
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import make_child_name, make_pool_deployment_name, to_label_value
from tidegate.resources.serving import get_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources


@dataclass(frozen=True, slots=True)
class PoolDeployment:
    """One Deployment that an Inference is to have, and what there is of it."""

    pods: Sequence[PodView]
    replicas: int
    """Pods that it is to have."""
    required: int
    """Pods of it that must be ready for Ready=True."""
    placement: PlacementResult | None = None
    """What its pool gives it; None without placement."""
    own_pool: str = ""
    """As in `PoolPods`."""
    live: DeploymentView | None = None

    @property
    def slice_resources(self) -> SliceResources | None:
        """Return what its pool gives each pod."""
        return self.placement.resources if self.placement is not None else None

    @property
    def template_unknown(self) -> bool:
        """Return whether the pod template is unknown, because the pool cannot tell the resources of a slice.

        The pods that run then stay as they are.
        """
        return self.placement is not None and self.placement.resources is None

    @property
    def pool_pods(self) -> PoolPods:
        """Return the same for the building of its objects."""
        return PoolPods(self.slice_resources, self.replicas, self.own_pool)


@dataclass(frozen=True, slots=True)
class RetiredDeployment:
    """The Deployment of a pool that the spec does not name any more."""

    live: DeploymentView
    pods: Sequence[PodView]
    replicas: int
    """Pods that it keeps now: those that the others do not replace yet."""

    @property
    def is_drained(self) -> bool:
        """Return whether no pod of it is left."""
        return not self.live.replicas and not self.pods


@dataclass(frozen=True, slots=True)
class DeploymentSet:
    """All Deployments of an Inference."""

    desired: Sequence[PoolDeployment]
    retired: Sequence[RetiredDeployment] = ()

    def index_by_pod(self) -> Mapping[str, PoolDeployment]:
        """Return the Deployment that each pod is counted with, by uid; without those of retired Deployments."""
        return {pod.uid: item for item in self.desired for pod in item.pods}


@dataclass(frozen=True, slots=True)
class DeploymentsPlan:
    """What to apply and delete, and what the pods' state means."""

    apply: Sequence[Manifest]
    delete: Sequence[ObjectDeletion]
    verdict: Verdict
    sources: frozenset[str]
    """The sources, besides the spec's, whose ConfigMaps a pod may still start with."""


def match_deployments(observed: InferenceObserved) -> DeploymentSet:
    """Match the live Deployments of an Inference with those that it is to have."""
    placement = observed.placement
    results = (placement.pools or (placement,)) if placement is not None else (None,)
    lives = _name_deployments(observed.inference, results, observed.deployments)
    own = {live.name for live in lives.values() if live is not None}
    former = [live for live in observed.deployments if live.name not in own and _is_own(live, observed)]
    if len(results) == 1 and not former:
        ((own_pool, live),) = lives.items()
        only = PoolDeployment(
            observed.pods, observed.replicas, observed.required_pods, results[0], own_pool, live
        )
        return DeploymentSet((only,))
    labels = [_get_label(result) for result in results]
    former_labels = {live.pool for live in former}
    desired: list[PoolDeployment] = []
    for result, label, (own_pool, live) in zip(results, labels, lives.items(), strict=True):
        other_labels = {*former_labels, *labels} - {label}
        pods = [
            pod
            for pod in observed.pods
            if (pod.pool == label if len(results) > 1 else pod.pool not in other_labels)
        ]
        replicas = result.replicas if result is not None else observed.replicas
        if replicas or live is not None or len(results) == 1:
            desired.append(PoolDeployment(pods, replicas, replicas, result, own_pool, live))
    return DeploymentSet(desired, _retire_deployments(observed, desired, former))


def _name_deployments(
    inference: Inference,
    results: Sequence[PlacementResult | None],
    deployments: Sequence[DeploymentView],
) -> Mapping[str, DeploymentView | None]:
    """Return the live Deployment of each pool, in order, by the pool's label if it has a Deployment of its own, else by "".

    With one pool, the Deployment with the bare name moves there, unless the pool has one of its own.
    """
    bare_name = make_child_name("inf", inference.metadata.name)
    by_name = {live.name or bare_name: live for live in deployments}
    bare = by_name.get(bare_name)
    labels = [_get_label(result) for result in results]
    own = {label: by_name.get(make_pool_deployment_name(inference.metadata.name, label)) for label in labels}
    if bare is not None and bare.pool in labels:
        bare_label: str | None = bare.pool
    elif bare is None or len(results) == 1:
        bare_label = next((label for label in labels if own[label] is None), None)
    else:
        bare_label = None
    return {
        ("" if label == bare_label else label): (bare if label == bare_label else own[label])
        for label in labels
    }


def _get_label(result: PlacementResult | None) -> str:
    return to_label_value(result.pool) if result is not None else ""


def _is_own(live: DeploymentView, observed: InferenceObserved) -> bool:
    return bool(live.owner) and live.owner == observed.inference.metadata.uid


def _retire_deployments(
    observed: InferenceObserved, desired: Sequence[PoolDeployment], former: Sequence[DeploymentView]
) -> Sequence[RetiredDeployment]:
    """Let Deployments end as the pods of the others become ready: together, no fewer are ready than before."""
    ready = sum(pod.ready and pod.is_reachable for deployment in desired for pod in deployment.pods)
    missing = max(observed.inference.spec.replicas - ready, 0)
    retired: list[RetiredDeployment] = []
    for live in sorted(former, key=lambda live: live.name):
        replicas = min(live.replicas, missing)
        missing -= replicas
        pods = [pod for pod in observed.pods if pod.pool == live.pool]
        retired.append(RetiredDeployment(live, pods, replicas))
    return retired


def plan_deployments(
    observed: InferenceObserved,
    deployments: DeploymentSet,
    settings: ServingSettings,
    start: str,
    swap: SwapPlan,
) -> DeploymentsPlan:
    """Plan all Deployments; `start` is the DesiredState JSON that starting pods begin with."""
    inference = observed.inference
    apply: list[Manifest] = []
    verdicts: list[tuple[PoolDeployment, Verdict]] = []
    sources: set[str] = set()
    for deployment in deployments.desired:
        manifest = build_pool_deployment(inference, settings, start, deployment.pool_pods)
        rollout = _plan_rollout(observed, deployment, manifest, swap)
        pods = _judge_deployment(observed, deployment, rollout.template)
        counted = with_replicas(inference, deployment.replicas) if observed.has_several_pools else inference
        verdicts.append((deployment, judge_rollout(counted, deployment.pods, rollout, pods)))
        sources |= rollout.sources
        if rollout.deployment is not None:
            apply.append(rollout.deployment)
    for retired in deployments.retired:
        shrunk = _shrink_deployment(inference, settings, start, retired)
        sources.add(get_template_source(retired.live.template))
        if shrunk is not None:
            apply.append(shrunk)
    delete = [_delete_deployment(inference, item.live) for item in deployments.retired if item.is_drained]
    return DeploymentsPlan(apply, delete, _merge_verdicts(verdicts), frozenset(sources))


def _plan_rollout(
    observed: InferenceObserved, deployment: PoolDeployment, desired: Manifest, swap: SwapPlan
) -> RolloutPlan:
    """Return the Deployment to apply; a failed rollout is explained by the model's failure, else by the pods."""
    inference = observed.inference
    if deployment.template_unknown:
        return keep_template(deployment.live, desired, deployment.replicas)
    if swap.failure is not None:
        failure = swap.failure.failure
        message = f"version {failure.version}: {failure.message}"
        problem = Verdict(False, Reason(failure.reason.value), message)
    else:
        template = get_template_hash(desired)
        current = [pod for pod in deployment.pods if pod.template == template]
        problem = _judge_deployment(observed, deployment, template)
        if problem.holds:
            # The replicas serve without their compilers, which the Deployment waits for.
            problem = judge_compilers(current) or problem
    attempt = RolloutAttempt(hash_attempt(inference), inference.metadata.generation, problem)
    return plan_rollout(deployment.live, desired, attempt)


def _judge_deployment(observed: InferenceObserved, deployment: PoolDeployment, template: str) -> Verdict:
    return judge_pods(
        deployment.pods,
        deployment.required,
        template,
        make_inference_selector(observed.inference),
        observed.freest_nodes,
        remedy=(deployment.placement.remedy if deployment.placement is not None else "")
        or suggest_remedy(observed.inference),
    )


def _merge_verdicts(verdicts: Sequence[tuple[PoolDeployment, Verdict]]) -> Verdict:
    """Return the verdict about the pods of all Deployments: the first problem, with the pool that has it."""
    if len(verdicts) == 1:
        return verdicts[0][1]
    for deployment, verdict in verdicts:
        if not verdict.holds:
            pool = deployment.placement.pool if deployment.placement is not None else ""
            return Verdict(
                False, verdict.reason, f"in ComputePool {pool}: {verdict.message}", stalled=verdict.stalled
            )
    required = sum(deployment.required for deployment, _ in verdicts)
    if not required:
        return Verdict(True, Reason.SCALED_TO_ZERO, "spec.replicas is 0, nothing serves")
    return Verdict(True, Reason.ALL_REPLICAS_READY, f"{required} of {required} replicas are ready")


def _shrink_deployment(
    inference: Inference, settings: ServingSettings, start: str, retired: RetiredDeployment
) -> Manifest | None:
    """Return a retired Deployment with fewer pods; None if it keeps those that it has."""
    bare = retired.live.name == make_child_name("inf", inference.metadata.name)
    pods = PoolPods(replicas=retired.replicas, own_pool="" if bare else retired.live.pool)
    manifest = build_pool_deployment(inference, settings, start, pods)
    return keep_template(retired.live, manifest, retired.replicas).deployment


def _delete_deployment(inference: Inference, live: DeploymentView) -> ObjectDeletion:
    return ObjectDeletion("Deployment", ObjectKey(inference.metadata.namespace, live.name), live.uid)


def describe_retired(deployments: DeploymentSet) -> str:
    """Return what happens to the pods of pools that the spec does not name any more; empty if there are none."""
    parts = [
        f"{len(item.pods)} {f'in ComputePool {item.live.pool}' if item.live.pool else 'outside pools'}"
        for item in deployments.retired
        if item.pods
    ]
    if not parts:
        return ""
    return f"; pods outside the pools of spec.placement end as others become ready: {', '.join(parts)}"


def is_up_to_date(inference: Inference, deployments: DeploymentSet) -> bool:
    """Return whether every Deployment has pods that run as the spec asks."""
    source = hash_source(inference)
    lives = [deployment.live for deployment in deployments.desired]
    return bool(lives) and all(
        live is not None and get_template_source(live.template) == source for live in lives
    )
