"""Build the order for the agents of a FeatureCompute, and its ConfigMap, Deployment and PodDisruptionBudget."""

from typing import Final

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Tier
from tidegate.api.quantities import canonicalize_quantity, parse_quantity
from tidegate.resources.artefact import find_volume_claims, is_fetched, reads_host
from tidegate.resources.digest import hash_json
from tidegate.resources.ingester import build_ingester_deployment
from tidegate.resources.manifest import Manifest, make_owner_reference
from tidegate.resources.names import (
    FEATURE_COMPUTE_LABEL,
    MANAGED_BY,
    MANAGER,
    SOURCE_LABEL,
    TIER_LABEL,
    make_child_name,
    to_label_value,
)
from tidegate.resources.serving import ServingWorkload, build_workload_objects
from tidegate.resources.serving_pod import EventStore, ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import BatchingMode, DesiredState, FeaturePlan, ModelFormat, OwnerKind

_MAX_ROWS: Final = 4096
"""Largest number of rows in one request; features are vectorised, so it bounds memory rather than time."""
MAX_PROCESSES: Final = 8
PROCESS_BYTES: Final = 256 << 20
"""Memory of a pod for each process: Python with its libraries, twice while a table is refreshed, and the requests that it computes.

Tables and events are mapped by all of them.
"""
_TIER: Final = Tier.REALTIME.value


def make_features_state(
    features: FeatureCompute, plan: FeaturePlan, settings: ServingSettings
) -> DesiredState:
    """Return the order of every pod's agent: the compiled plan, as version 1 of a model of the object's name.

    A pod keeps the plan it started with, so the order names no generation: the plan's hash is its identity.
    """
    return DesiredState(
        owner=str(features.key),
        kind=OwnerKind.FEATURE_COMPUTE,
        epoch=0,
        generation=0,
        model=features.metadata.name,
        version=1,
        format=ModelFormat.FEATURES,
        max_batch_size=_MAX_ROWS,
        # Rows do not depend on each other, so what arrives while others are computed is computed together.
        batching=BatchingMode.FIXED,
        instances=count_processes(features),
        max_artefact_bytes=settings.max_artefact_bytes,
        max_table_bytes=None
        if features.spec.table_storage is None
        else int(parse_quantity(features.spec.table_storage)),
        allowed_hosts=settings.allowed_hosts,
        plan=plan,
    )


def count_processes(features: FeatureCompute) -> int:
    """Return how many processes compute the features of a pod: one for each whole core that has PROCESS_BYTES of memory."""
    resources = features.spec.resources
    cores, room = int(parse_quantity(resources.cpu)), int(parse_quantity(resources.memory)) // PROCESS_BYTES
    return max(min(cores, room, MAX_PROCESSES), 1)


def hash_features_source(features: FeatureCompute, plan: FeaturePlan) -> str:
    """Return the hash in names and labels: what changes them, or another object of the same name, needs new pods."""
    store = [] if plan.store is None else [plan.store.model_dump(mode="json")]
    letters = [[item.model_dump(mode="json") for item in plan.dead_letters]] if plan.dead_letters else []
    processes = count_processes(features)
    return hash_json(
        [features.metadata.uid, plan.hash, *store, *letters, *([processes] if processes > 1 else [])]
    )


def make_features_selector(features: FeatureCompute) -> dict[str, str]:
    """Return the labels that select the pods of a FeatureCompute, within its namespace."""
    return {FEATURE_COMPUTE_LABEL: to_label_value(features.metadata.name)}


def make_features_workload(features: FeatureCompute, plan: FeaturePlan, start: str) -> ServingWorkload:
    """Return the workload of a FeatureCompute whose starting pods begin with the DesiredState JSON `start`."""
    selector = make_features_selector(features)
    return ServingWorkload(
        namespace=features.metadata.namespace,
        name=make_child_name("fc", features.metadata.name),
        owner=make_owner_reference("tidegate.io/v1alpha1", "FeatureCompute", features.metadata),
        selector=selector,
        labels={**selector, TIER_LABEL: _TIER},
        source=hash_features_source(features, plan),
        replicas=features.spec.replicas,
        max_replicas=features.spec.replicas,
        start_order=start,
    )


def build_features_objects(
    features: FeatureCompute, plan: FeaturePlan, settings: ServingSettings, start: str
) -> tuple[Manifest, ...]:
    """Build all children of a FeatureCompute in the order of application."""
    workload = make_features_workload(features, plan, start)
    uris = tuple(table.uri for table in plan.tables)
    pod = ServingPod(
        labels={**workload.labels, MANAGED_BY: MANAGER, SOURCE_LABEL: workload.source},
        config_map=workload.config_map,
        spread_labels=workload.selector,
        cpu=canonicalize_quantity(features.spec.resources.cpu),
        memory=canonicalize_quantity(features.spec.resources.memory),
        disk=""
        if features.spec.table_storage is None
        else canonicalize_quantity(features.spec.table_storage),
        priority_class=f"{settings.priority_class_prefix}{_TIER}",
        claims=find_volume_claims(uris),
        storage_secret=settings.storage_secret,
        cache_folder=features.metadata.namespace if settings.node_cache_path and is_fetched(uris) else "",
        host_models=reads_host(uris) and bool(settings.models_host_path),
        processes=count_processes(features),
        events=_make_embedded_store(features, plan),
        redis_secret=plan.store.secret if plan.store is not None else "",
    )
    objects = build_workload_objects(workload, pod, settings)
    if plan.store is None:
        return objects
    store = EventStore(_list_secrets(plan), redis_secret=plan.store.secret)
    name = make_child_name("fi", features.metadata.name, workload.source)
    return (*objects, build_ingester_deployment(name, workload, pod, store, settings))


def _make_embedded_store(features: FeatureCompute, plan: FeaturePlan) -> EventStore | None:
    if not plan.streams or plan.store is not None:
        return None
    return EventStore(_list_secrets(plan), max_bytes=int(parse_quantity(features.spec.event_storage)))


def _list_secrets(plan: FeaturePlan) -> dict[str, str]:
    """Return the Secret of each source that has one."""
    return {stream.name: stream.secret_name for stream in plan.streams if stream.secret_name}
