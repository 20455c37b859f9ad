"""Build the Indexed Job of `spec.batch`: one pod per shard, with the agent, Triton and the shard's process.

A backfill builds its Job from the same parts.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from tidegate.api.backfill import BackfillSpec
from tidegate.api.batch import BatchSpec
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.quantities import canonicalize_quantity, parse_quantity
from tidegate.resources.artefact import find_volume_claims, reads_host
from tidegate.resources.batch_features import ShardFeatures
from tidegate.resources.batch_run import make_run_name
from tidegate.resources.containers import CONTAINER_SECURITY, build_read_mounts, make_field_env
from tidegate.resources.digest import hash_json
from tidegate.resources.inference import (
    PoolPods,
    make_desired_state,
    make_inference_workload,
    make_serving_pod,
)
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import QUEUE_LABEL, RUN_LABEL, make_child_name
from tidegate.resources.nearline import PROMPT_DRAIN, PROMPT_EXIT_S
from tidegate.resources.pod import build_pod_template
from tidegate.resources.serving import (
    ServingWorkload,
    add_template_hash,
    build_config_map,
    build_owned_object,
    read_template_hash,
)
from tidegate.resources.serving_pod import ServingPod
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import BatchOrder, DesiredState, InputColumn

SHARD_CONTAINER: Final = "shard"
"""The container that ends the pod: agent and Triton are its sidecars."""
EXIT_PERMANENT: Final = 3
"""Its exit code for an error that would come again."""
EXIT_SIGTERM: Final = 143
"""Exit code of a process that SIGTERM ended."""
SHARD_CPU: Final = "50m"
SHARD_MEMORY: Final = "128Mi"
"""Its requests, beside those of server and agent."""
SHARD_MEMORY_LIMIT: Final = "2Gi"
_TRIES_PER_SHARD: Final = 5
"""Pods of one shard that may fail for another reason, such as a store that does not answer."""
SHARD_PORT: Final = 8083
"""Where its metrics are."""
_SECRET: Final = "/etc/tidegate-batch"  # noqa: S105 - a folder
_CLAIMS: Final = "/mnt/batch"


def make_batch_order(
    inference: Inference, batch: BatchSpec, features: ShardFeatures | None = None
) -> BatchOrder:
    """Return the order of the shards' processes."""
    return BatchOrder(
        run=make_run_name(inference, batch, features.order.plan.hash if features is not None else None),
        source=batch.input.uri,
        sink=batch.output.uri,
        columns=tuple(
            InputColumn(input=mapping.input, column=mapping.column) for mapping in batch.input.columns
        ),
        keep=batch.output.keep,
        shards=batch.shards,
        rows_per_file=batch.output.rows_per_file,
        max_refused_rows=batch.max_refused_rows,
        secret=batch.secret_name or "",
        features=features.order if features is not None else None,
    )


def build_batch_objects(
    inference: Inference,
    batch: BatchSpec,
    settings: ServingSettings,
    slices: SliceResources | None,
    parallelism: int,
    features: ShardFeatures | None = None,
) -> tuple[Manifest, ...]:
    """Build all children of an Inference with a batch; the Job is the last, named by its template and queue."""
    # Without epoch and generation: no order ever follows, and the same run keeps its ConfigMap.
    ordered = make_desired_state(inference, settings, epoch=0).model_copy(
        update={"generation": 0, "batch": make_batch_order(inference, batch, features), "stream": None}
    )
    workload = _make_workload(inference, ordered, slices, parallelism)
    pod = _make_pod(inference, batch, workload, settings, slices, features)
    template = _build_template(batch, pod, settings, features)
    name = make_child_name("inf", inference.metadata.name, _identify_job(batch, template))
    job = build_owned_object(
        workload,
        "batch/v1",
        "Job",
        name,
        {"spec": build_job_spec(batch, template, parallelism)},
        in_pool=True,
    )
    return (build_config_map(workload, settings), _add_queue(job, batch))


def _identify_job(batch: BatchSpec, template: Mapping[str, Any]) -> str:
    """Return a hash of what needs another Job: its template is immutable, and so is its queue while it runs."""
    identity = read_template_hash(template)
    return hash_json([identity, batch.queue_name]) if batch.queue_name is not None else identity


def _add_queue(job: Manifest, batch: BatchSpec) -> Manifest:
    """Add the queue to a Job for Kueue, which also wants it suspended until it resumes it."""
    if batch.queue_name is None:
        return job
    metadata: Any = job["metadata"]
    spec: Any = job["spec"]
    labels = {**metadata["labels"], QUEUE_LABEL: batch.queue_name}
    return {**job, "metadata": {**metadata, "labels": labels}, "spec": {**spec, "suspend": True}}


def _make_workload(
    inference: Inference, ordered: DesiredState, slices: SliceResources | None, parallelism: int
) -> ServingWorkload:
    workload = make_inference_workload(inference, ordered.to_json(), PoolPods(slices, parallelism))
    run = ordered.batch.run if ordered.batch is not None else ""
    return replace(
        workload,
        source=hash_json(ordered.model_dump(mode="json")),
        labels={**workload.labels, RUN_LABEL: run},
    )


def build_job_spec(
    batch: BatchSpec | BackfillSpec, template: Mapping[str, object], parallelism: int
) -> dict[str, object]:
    """Build the spec of an Indexed Job that has a pod for each shard."""
    spec: dict[str, object] = {
        "completionMode": "Indexed",
        "completions": batch.shards,
        "parallelism": parallelism,
        "backoffLimitPerIndex": _TRIES_PER_SHARD,
        # Only once a pod has ended: two pods of one shard would do the same work.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailIndex",
                    "onExitCodes": {
                        "containerName": SHARD_CONTAINER,
                        "operator": "In",
                        "values": [EXIT_PERMANENT],
                    },
                },
                # Deleted, by us with fewer replicas or by a user, which leaves no condition on the pod.
                {
                    "action": "Ignore",
                    "onExitCodes": {
                        "containerName": SHARD_CONTAINER,
                        "operator": "In",
                        "values": [EXIT_SIGTERM],
                    },
                },
                # A drain or a preemption is not the shard's fault.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": template,
    }
    if batch.deadline is not None:
        spec["activeDeadlineSeconds"] = parse_duration(batch.deadline) // timedelta(seconds=1)
    return spec


def _make_pod(
    inference: Inference,
    batch: BatchSpec,
    workload: ServingWorkload,
    settings: ServingSettings,
    slices: SliceResources | None,
    features: ShardFeatures | None,
) -> ServingPod:
    """Return the server's part of a pod: that of any Inference, with what the shard takes of a slice left to it."""
    pod = make_serving_pod(inference, workload, settings, slices)
    uris = (
        inference.spec.model.uri,
        batch.input.uri,
        *(features.source_uris if features is not None else ()),
    )
    pod = replace(
        pod,
        agent_env=PROMPT_DRAIN,
        exit_timeout_s=PROMPT_EXIT_S,
        claims=find_volume_claims(uris),
        host_models=reads_host(uris) and bool(settings.models_host_path),
    )
    if slices is None:
        return pod
    memory = add_shard_memory(SHARD_MEMORY, features)
    return replace(pod, cpu=_subtract_share(pod.cpu, SHARD_CPU), memory=_subtract_share(pod.memory, memory))


def add_shard_memory(own: str, features: ShardFeatures | None) -> str:
    """Return memory of the shard's process, with that of the features that it computes."""
    if features is None:
        return own
    return canonicalize_quantity(f"{parse_quantity(own) + parse_quantity(features.memory):f}")


def _build_template(
    batch: BatchSpec, pod: ServingPod, settings: ServingSettings, features: ShardFeatures | None
) -> dict[str, Any]:
    template: dict[str, Any] = build_pod_template(pod, settings)
    spec = template["spec"]
    (server,) = spec["containers"]
    # As a sidecar it restarts, and ends with the shard; a Job's own containers would not restart.
    spec["initContainers"] = [*spec["initContainers"], {**server, "restartPolicy": "Always"}]
    spec["containers"] = [
        build_shard_container(
            batch,
            pod,
            settings,
            add_shard_memory(SHARD_MEMORY, features),
            add_shard_memory(SHARD_MEMORY_LIMIT, features),
            disk=features.disk if features is not None else "",
        )
    ]
    spec["volumes"] = [*spec["volumes"], *build_shard_volumes(batch)]
    spec["restartPolicy"] = "Never"
    template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = SHARD_CONTAINER
    return finish_shard_template(batch, template)


def finish_shard_template(batch: BatchSpec | BackfillSpec, template: dict[str, Any]) -> dict[str, Any]:
    """Return the template of a shard's pod with its hash, and with quick starts where results are on a volume."""
    spec = template["spec"]
    if find_volume_claims((batch.output.uri,)):
        # Otherwise the kubelet would go through all results before every start of a pod.
        spec["securityContext"] = {**spec["securityContext"], "fsGroupChangePolicy": "OnRootMismatch"}
    return add_template_hash(template)


def find_shard_memory(slices: SliceResources) -> Decimal:
    """Return the memory of a pod's slices, in bytes, that is left to features."""
    size = parse_quantity(slices.memory)
    return max(size - _find_server_share(size) - parse_quantity(SHARD_MEMORY), Decimal())


def _subtract_share(total: str, share: str) -> str:
    """Subtract the shard's share from a slice; the last quarter stays with the server."""
    size = parse_quantity(total)
    return canonicalize_quantity(f"{max(size - parse_quantity(share), _find_server_share(size)):f}")


def _find_server_share(size: Decimal) -> Decimal:
    return (size / 4).quantize(Decimal("0.001"))


def build_shard_container(
    batch: BatchSpec | BackfillSpec,
    pod: ServingPod,
    settings: ServingSettings,
    memory: str,
    memory_limit: str,
    cpu: str = SHARD_CPU,
    disk: str = "",
) -> dict[str, object]:
    """Build the container of a shard's process; `disk` is for the tables that it converts, as a quantity."""
    mounts = build_read_mounts(pod)
    mounts.append({"name": "shard-tmp", "mountPath": "/tmp"})  # noqa: S108 - an emptyDir of the pod's own
    if batch.secret_name:
        mounts.append({"name": "batch-secret", "mountPath": _SECRET, "readOnly": True})
    mounts.extend(
        {"name": "results", "mountPath": f"{_CLAIMS}/{claim}"}
        for claim in find_volume_claims((batch.output.uri,))
    )
    return {
        "name": SHARD_CONTAINER,
        "image": settings.dataplane_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "tidegate_dataplane.batch"],
        "env": [
            make_field_env("POD_NAME", "metadata.name"),
            {"name": "TIDEGATE_AGENT_SECRET_NAME", "value": pod.storage_secret},
        ],
        "ports": [{"name": "shard", "containerPort": SHARD_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {
                "cpu": cpu,
                "memory": memory,
                **({"ephemeral-storage": canonicalize_quantity(disk)} if disk else {}),
            },
            "limits": {"memory": memory_limit},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def build_shard_volumes(batch: BatchSpec | BackfillSpec) -> list[dict[str, object]]:
    """Build the volumes that a shard's process has besides those that it reads."""
    volumes: list[dict[str, object]] = [{"name": "shard-tmp", "emptyDir": {}}]
    if batch.secret_name:
        volumes.append(
            {"name": "batch-secret", "secret": {"secretName": batch.secret_name, "optional": True}}
        )
    volumes.extend(
        {"name": "results", "persistentVolumeClaim": {"claimName": claim}}
        for claim in find_volume_claims((batch.output.uri,))
    )
    return volumes
