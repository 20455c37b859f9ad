"""Build the Indexed Job of `spec.backfill`: one pod per shard, with the shard's process alone."""

from typing import Final

from tidegate.api.backfill import BackfillSpec
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Tier
from tidegate.api.quantities import canonicalize_quantity
from tidegate.resources.artefact import find_volume_claims, reads_host
from tidegate.resources.batch import (
    SHARD_MEMORY,
    SHARD_MEMORY_LIMIT,
    SHARD_PORT,
    add_shard_memory,
    build_job_spec,
    build_shard_container,
    build_shard_volumes,
    finish_shard_template,
)
from tidegate.resources.batch_features import ShardFeatures
from tidegate.resources.digest import hash_json
from tidegate.resources.feature_compute import make_features_state
from tidegate.resources.manifest import Manifest, make_owner_reference
from tidegate.resources.names import (
    BACKFILL_LABEL,
    MANAGED_BY,
    MANAGER,
    RUN_LABEL,
    SOURCE_LABEL,
    TIER_LABEL,
    make_child_name,
    to_label_value,
)
from tidegate.resources.pod import build_worker_template
from tidegate.resources.serving import (
    ServingWorkload,
    build_config_map,
    build_owned_object,
    read_template_hash,
)
from tidegate.resources.serving_pod import ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import BatchOrder, DesiredState, InputColumn

BACKFILL_PATH: Final = "spec.backfill"
_TIER: Final = Tier.OFFLINE.value


def make_backfill_run(features: FeatureCompute, backfill: BackfillSpec, plan_hash: str) -> str:
    """Return the name of the run that the spec asks for: another one whenever the rows of the results could differ."""
    content = backfill.model_dump(
        mode="json", include={"input", "output", "event_time", "sources", "shards", "run"}
    )
    return f"{plan_hash[:12]}-{hash_json([features.metadata.uid, plan_hash, content])}"


def make_backfill_selector(features: FeatureCompute) -> dict[str, str]:
    """Return the labels that select the pods of a backfill, within its namespace."""
    return {BACKFILL_LABEL: to_label_value(features.metadata.name)}


def make_backfill_state(
    features: FeatureCompute, backfill: BackfillSpec, shards: ShardFeatures, settings: ServingSettings
) -> DesiredState:
    """Return the order of every pod: the rows, and the plan that computes their features."""
    plan = shards.order.plan
    order = BatchOrder(
        run=make_backfill_run(features, backfill, plan.hash),
        source=backfill.input.uri,
        sink=backfill.output.uri,
        columns=tuple(
            InputColumn(input=mapping.input, column=mapping.column) for mapping in backfill.input.columns
        ),
        keep=(*backfill.output.keep, *(output.name for output in plan.outputs)),
        shards=backfill.shards,
        rows_per_file=backfill.output.rows_per_file,
        max_refused_rows=backfill.max_refused_rows,
        secret=backfill.secret_name or "",
        features=shards.order,
        spec_path=BACKFILL_PATH,
    )
    # The plan is in the features of the order.
    return make_features_state(features, plan, settings).model_copy(update={"batch": order, "plan": None})


def build_backfill_objects(
    features: FeatureCompute, backfill: BackfillSpec, shards: ShardFeatures, settings: ServingSettings
) -> tuple[Manifest, ...]:
    """Build all children of a backfill; the Job is the last, named by its template."""
    state = make_backfill_state(features, backfill, shards, settings)
    selector = make_backfill_selector(features)
    workload = ServingWorkload(
        namespace=features.metadata.namespace,
        name=make_child_name("fcb", features.metadata.name),
        owner=make_owner_reference("tidegate.io/v1alpha1", "FeatureCompute", features.metadata),
        selector=selector,
        labels={
            **selector,
            TIER_LABEL: _TIER,
            RUN_LABEL: make_backfill_run(features, backfill, shards.order.plan.hash),
        },
        source=hash_json(state.model_dump(mode="json")),
        replicas=backfill.parallelism,
        start_order=state.to_json(),
    )
    uris = (backfill.input.uri, *shards.source_uris)
    pod = ServingPod(
        labels={**workload.labels, MANAGED_BY: MANAGER, SOURCE_LABEL: workload.source},
        config_map=workload.config_map,
        spread_labels=selector,
        cpu=canonicalize_quantity(features.spec.resources.cpu),
        memory=add_shard_memory(SHARD_MEMORY, shards),
        priority_class=f"{settings.priority_class_prefix}{_TIER}",
        claims=find_volume_claims(uris),
        storage_secret=settings.storage_secret,
        host_models=reads_host(uris) and bool(settings.models_host_path),
    )
    limit = add_shard_memory(SHARD_MEMORY_LIMIT, shards)
    container = build_shard_container(backfill, pod, settings, pod.memory, limit, pod.cpu, shards.disk)
    template = finish_shard_template(
        backfill,
        build_worker_template(pod, settings, container, SHARD_PORT, build_shard_volumes(backfill)),
    )
    name = make_child_name("fcb", features.metadata.name, read_template_hash(template))
    spec = build_job_spec(backfill, template, backfill.parallelism)
    job = build_owned_object(workload, "batch/v1", "Job", name, {"spec": spec})
    return (build_config_map(workload, settings), job)
