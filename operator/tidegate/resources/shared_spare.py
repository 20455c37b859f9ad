"""Build the pod that has models of several Inferences loaded, its Deployment, and the orders for its agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.shared_spares import MAX_SHARED_MODELS
from tidegate.resources.digest import hash_json
from tidegate.resources.manifest import Manifest, make_owner_reference
from tidegate.resources.names import (
    MANAGED_BY,
    MANAGER,
    POOL_LABEL,
    SLICES_LABEL,
    SOURCE_LABEL,
    SPARE_LABEL,
    SPARE_MODELS_ANNOTATION,
    SPARE_NODE_ANNOTATION,
    TIER_LABEL,
    make_child_name,
    to_label_value,
)
from tidegate.resources.serving import ServingWorkload, build_config_map, build_deployment
from tidegate.resources.serving_pod import ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import make_slice_resources
from tidegate_dataplane.contract import DesiredState


@dataclass(frozen=True, slots=True)
class SparePlace:
    """Where a spare runs, and for which Inferences of its namespace."""

    namespace: str
    number: int
    node: str
    slices: int
    models: tuple[str, ...]
    """Names of the Inferences."""
    starts: bool = True
    """Whether it has a pod: its node has slices for that."""


def make_spare_name(pool: str, number: int) -> str:
    """Return the name of a spare's Deployment: those of a pool have numbers, which are reused."""
    return make_child_name("spare", pool, str(number))


def build_spare_objects(
    pool: ComputePool, place: SparePlace, settings: ServingSettings
) -> tuple[Manifest, ...]:
    """Build the ConfigMap and the Deployment of a spare, in the order of application.

    The models are in an annotation of the Deployment alone, because another model must not replace the pod.
    """
    slices = make_slice_resources(pool, place.slices, Tier.REALTIME)
    selector = {POOL_LABEL: to_label_value(pool.metadata.name), SPARE_LABEL: str(place.number)}
    workload = ServingWorkload(
        namespace=place.namespace,
        name=make_spare_name(pool.metadata.name, place.number),
        owner=make_owner_reference("tidegate.io/v1alpha1", ComputePool.KIND, pool.metadata),
        selector=selector,
        labels={**selector, TIER_LABEL: Tier.REALTIME.value},
        pool_labels=slices.labels,
        source=hash_json([pool.metadata.uid]),
        replicas=int(place.starts),
        start_order="",
        # A pod whose node is lost ends only when that node is back or deleted, and its successor must not wait for that.
        in_place=True,
    )
    pod = ServingPod(
        labels={
            **workload.labels,
            **slices.labels,
            MANAGED_BY: MANAGER,
            SOURCE_LABEL: workload.source,
        },
        config_map=workload.config_map,
        spread_labels=selector,
        cpu=slices.cpu,
        memory=slices.memory,
        storage_secret=settings.storage_secret,
        priority_class=f"{settings.priority_class_prefix}{Tier.REALTIME.value}",
        cache_folder=place.namespace if settings.node_cache_path else "",
        agent_env={"TIDEGATE_AGENT_SHARED_MODELS": str(MAX_SHARED_MODELS)},
        host_models=bool(settings.models_host_path),
        node_selector=slices.node_selector,
        node=place.node,
        tolerations=slices.tolerations,
    )
    deployment: dict[str, Any] = dict(build_deployment(workload, pod, settings))
    annotations = {SPARE_MODELS_ANNOTATION: ",".join(place.models), SPARE_NODE_ANNOTATION: place.node}
    deployment["metadata"] = {**deployment["metadata"], "annotations": annotations}
    return build_config_map(workload, settings), deployment


def read_spare_place(deployment: Mapping[str, Any]) -> SparePlace | None:
    """Read the place of a spare from its Deployment; None if that is not as we wrote it."""
    metadata = deployment["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    number, slices = (labels.get(name, "") for name in (SPARE_LABEL, SLICES_LABEL))
    node = annotations.get(SPARE_NODE_ANNOTATION, "")
    if not (number.isdecimal() and slices.isdecimal() and int(slices) and node):
        return None
    models = annotations.get(SPARE_MODELS_ANNOTATION, "")
    names = tuple(name for name in models.split(",") if name)
    starts = bool((deployment.get("spec") or {}).get("replicas", 1))
    return SparePlace(metadata["namespace"], int(number), node, int(slices), names, starts)


def adapt_order(committed: DesiredState) -> DesiredState:
    """Return the order of an Inference for a pod without a compiler, which keeps one version of each model in memory."""
    return committed.model_copy(update={"graph_passes": False, "engine": None, "keep_versions": 1})


class SpareModel(NamedTuple):
    """A version that a spare serves; `source` is the hash of what else the model is, as its own pods' label has it."""

    version: int
    source: str


def format_served_models(models: Mapping[str, SpareModel]) -> str:
    """Return the value of the annotation of a pod: the Inferences that it serves, with their versions and sources."""
    return ",".join(f"{name}={model.version}@{model.source}" for name, model in sorted(models.items()))


def parse_served_models(annotations: Mapping[str, str]) -> Mapping[str, SpareModel]:
    """Parse that annotation; parts that do not parse count as absent, and so do those beyond what a spare may load."""
    served: dict[str, SpareModel] = {}
    for part in annotations.get(SPARE_MODELS_ANNOTATION, "").split(",")[:MAX_SHARED_MODELS]:
        name, _, model = part.partition("=")
        version, _, source = model.partition("@")
        if name and version.isdecimal() and source:
            served[name] = SpareModel(int(version), source)
    return served
