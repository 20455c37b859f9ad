"""Build the Indexed Job of `spec.batch`: one pod per shard, with the agent, Triton and the shard's process."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from tidegate.api.batch import Batch
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.quantities import canonical, parse_quantity
from tidegate.resources.artefact import claims, reads_host
from tidegate.resources.batch_run import run_name
from tidegate.resources.digest import short_digest
from tidegate.resources.inference import desired_state, inference_workload, serving_pod
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import QUEUE_LABEL, RUN_LABEL, child_name
from tidegate.resources.nearline import PROMPT_DRAIN, PROMPT_EXIT_S
from tidegate.resources.pod import CONTAINER_SECURITY, ServingPod, field_env, pod_template, reading_mounts
from tidegate.resources.serving import Workload, config_map, marked, owned_object, template_hash
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import BatchOrder, Column, DesiredState

SHARD: Final = "shard"
"""The container that ends the pod: agent and Triton are its sidecars."""
NEVER: Final = 3
"""Its exit code for an error that would come again."""
TOLD: Final = 143
"""Exit code of a process that SIGTERM ended."""
SHARD_CPU: Final = "50m"
SHARD_MEMORY: Final = "128Mi"
"""Its requests, beside those of server and agent."""
_SHARD_MEMORY_LIMIT: Final = "2Gi"
_TRIES_PER_SHARD: Final = 5
"""Pods of one shard that may fail for another reason, such as a store that does not answer."""
_METRICS_PORT: Final = 8083
_SECRET: Final = "/etc/tidegate-batch"  # noqa: S105 - a folder
_CLAIMS: Final = "/mnt/batch"


def batch_order(inference: Inference, batch: Batch) -> BatchOrder:
    """Return the order of the shards' processes."""
    return BatchOrder(
        run=run_name(inference, batch),
        source=batch.input.uri,
        sink=batch.output.uri,
        columns=tuple(Column(input=mapping.input, column=mapping.column) for mapping in batch.input.columns),
        keep=batch.output.keep,
        shards=batch.shards,
        rows_per_file=batch.output.rows_per_file,
        max_refused_rows=batch.max_refused_rows,
        secret=batch.secret_name or "",
    )


def batch_objects(
    inference: Inference,
    batch: Batch,
    settings: ServingSettings,
    slices: SliceResources | None,
    parallelism: int,
) -> tuple[Manifest, ...]:
    """Build all children of an Inference with a batch; the Job is the last, named by its template and queue."""
    # Without epoch and generation: no order ever follows, and the same run keeps its ConfigMap.
    ordered = desired_state(inference, settings, epoch=0).model_copy(
        update={"generation": 0, "batch": batch_order(inference, batch), "stream": None}
    )
    workload = _workload(inference, ordered, slices, parallelism)
    template = _template(inference, batch, workload, settings, slices)
    name = child_name("inf", inference.metadata.name, _identity(batch, template))
    job = owned_object(
        workload, "batch/v1", "Job", name, {"spec": _job(batch, template, parallelism)}, placed=True
    )
    return (config_map(workload, settings), _queued(job, batch))


def _identity(batch: Batch, template: Mapping[str, Any]) -> str:
    """Return a hash of what needs another Job: its template is immutable, and so is its queue while it runs."""
    identity = template_hash(template)
    return short_digest([identity, batch.queue_name]) if batch.queue_name is not None else identity


def _queued(job: Manifest, batch: Batch) -> Manifest:
    """Add the queue to a Job for Kueue, which also wants it suspended until it resumes it."""
    if batch.queue_name is None:
        return job
    metadata: Any = job["metadata"]
    spec: Any = job["spec"]
    labels = {**metadata["labels"], QUEUE_LABEL: batch.queue_name}
    return {**job, "metadata": {**metadata, "labels": labels}, "spec": {**spec, "suspend": True}}


def _workload(
    inference: Inference, ordered: DesiredState, slices: SliceResources | None, parallelism: int
) -> Workload:
    workload = inference_workload(inference, ordered.to_json(), slices, parallelism)
    run = ordered.batch.run if ordered.batch is not None else ""
    return replace(
        workload,
        source=short_digest(ordered.model_dump(mode="json")),
        labels={**workload.labels, RUN_LABEL: run},
    )


def _job(batch: Batch, template: Mapping[str, object], parallelism: int) -> dict[str, object]:
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
                    "onExitCodes": {"containerName": SHARD, "operator": "In", "values": [NEVER]},
                },
                # Deleted, by us with fewer replicas or by a user, which leaves no condition on the pod.
                {
                    "action": "Ignore",
                    "onExitCodes": {"containerName": SHARD, "operator": "In", "values": [TOLD]},
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


def _template(
    inference: Inference,
    batch: Batch,
    workload: Workload,
    settings: ServingSettings,
    slices: SliceResources | None,
) -> dict[str, Any]:
    pod = serving_pod(inference, workload, settings, slices)
    uris = (inference.spec.model.uri, batch.input.uri)
    pod = replace(
        pod,
        agent_env=PROMPT_DRAIN,
        exit_timeout_s=PROMPT_EXIT_S,
        claims=claims(uris),
        host_models=reads_host(uris) and bool(settings.models_host_path),
    )
    if slices is not None:
        pod = replace(pod, cpu=_left(pod.cpu, SHARD_CPU), memory=_left(pod.memory, SHARD_MEMORY))
    template: dict[str, Any] = pod_template(pod, settings)
    spec = template["spec"]
    (server,) = spec["containers"]
    # As a sidecar it restarts, and ends with the shard; a Job's own containers would not restart.
    spec["initContainers"] = [*spec["initContainers"], {**server, "restartPolicy": "Always"}]
    spec["containers"] = [_shard(batch, pod, settings)]
    spec["volumes"] = [*spec["volumes"], *_volumes(batch)]
    spec["restartPolicy"] = "Never"
    if claims((batch.output.uri,)):
        # Otherwise the kubelet would go through all results before every start of a pod.
        spec["securityContext"] = {**spec["securityContext"], "fsGroupChangePolicy": "OnRootMismatch"}
    template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = SHARD
    return marked(template)


def _left(total: str, share: str) -> str:
    """Subtract the shard's share from a slice; the last quarter stays with the server."""
    size = parse_quantity(total)
    return canonical(f"{max(size - parse_quantity(share), (size / 4).quantize(Decimal('0.001'))):f}")


def _shard(batch: Batch, pod: ServingPod, settings: ServingSettings) -> dict[str, object]:
    mounts = reading_mounts(pod)
    mounts.append({"name": "shard-tmp", "mountPath": "/tmp"})  # noqa: S108 - an emptyDir of the pod's own
    if batch.secret_name:
        mounts.append({"name": "batch-secret", "mountPath": _SECRET, "readOnly": True})
    mounts.extend(
        {"name": "results", "mountPath": f"{_CLAIMS}/{claim}"} for claim in claims((batch.output.uri,))
    )
    return {
        "name": SHARD,
        "image": settings.dataplane_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "tidegate_dataplane.batch"],
        "env": [
            field_env("POD_NAME", "metadata.name"),
            {"name": "TIDEGATE_AGENT_SECRET_NAME", "value": pod.storage_secret},
        ],
        "ports": [{"name": "shard", "containerPort": _METRICS_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": SHARD_CPU, "memory": SHARD_MEMORY},
            "limits": {"memory": _SHARD_MEMORY_LIMIT},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def _volumes(batch: Batch) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = [{"name": "shard-tmp", "emptyDir": {}}]
    if batch.secret_name:
        volumes.append(
            {"name": "batch-secret", "secret": {"secretName": batch.secret_name, "optional": True}}
        )
    volumes.extend(
        {"name": "results", "persistentVolumeClaim": {"claimName": claim}}
        for claim in claims((batch.output.uri,))
    )
    return volumes
