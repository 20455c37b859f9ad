"""Read single objects, which must exist, and all overrides and decisions."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import NotAllowedError, PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import (
    ALLOCATION_DECISION,
    COMPUTE_OVERRIDE,
    COMPUTE_POOL,
    INFERENCE,
    MODEL_ACCESS,
    Kind,
)
from tidegate.kube.port import Manifest


async def read_target(
    client: KubeClient, kind: OverrideKind, key: ObjectKey
) -> tuple[Inference | None, ComputePool | None]:
    """Return the target if it is an Inference, and the pool that it is or is placed in, if that exists.

    Raises PermanentError when the target does not exist.
    """
    if kind is OverrideKind.COMPUTE_POOL:
        return None, ComputePool.parse(await read_body(client, COMPUTE_POOL, key))
    inference = await read_inference(client, key)
    placement = inference.spec.placement
    body = None if placement is None else await client.get(COMPUTE_POOL, ObjectKey("", placement.first_pool))
    return inference, None if body is None else ComputePool.parse(body)


async def read_inference(client: KubeClient, key: ObjectKey) -> Inference:
    """Return an Inference. Raises PermanentError when it does not exist."""
    return Inference.parse(await read_body(client, INFERENCE, key))


async def read_access(client: KubeClient, key: ObjectKey) -> ModelAccess:
    """Return a ModelAccess. Raises PermanentError when it does not exist."""
    return ModelAccess.parse(await read_body(client, MODEL_ACCESS, key))


async def read_body(client: KubeClient, kind: Kind, key: ObjectKey) -> Manifest:
    """Return an object as the API server has it. Raises PermanentError when it does not exist."""
    body = await client.get(kind, key)
    if body is None:
        raise not_found_error(kind, key)
    return body


def not_found_error(kind: Kind, key: ObjectKey) -> PermanentError:
    """Return the error for an object that does not exist; without a namespace, none has it."""
    location = f' in namespace "{key.namespace}"' if key.namespace else ""
    everywhere = " -A" if kind.namespaced else ""
    return PermanentError(
        f'{kind} "{key.name}" not found{location}; list them with "tidegate get {kind.plural}{everywhere}"'
    )


async def list_inference_keys(
    client: KubeClient, namespace: str | None, default_namespace: str, labels: str
) -> tuple[Sequence[ObjectKey], str | None]:
    """List the Inferences of a namespace, or of all for None, that have these labels; return also which it was.

    A user who may not list all namespaces gets `default_namespace` alone.
    """
    try:
        bodies = await client.list(INFERENCE, namespace=namespace or "", selector=labels)
    except NotAllowedError:
        if namespace is not None:
            raise
        namespace = default_namespace
        bodies = await client.list(INFERENCE, namespace=namespace, selector=labels)
    return [ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]) for body in bodies], namespace


async def list_decisions(client: KubeClient, pool: str | None = None) -> Sequence[AllocationDecision]:
    """List the decisions about one pool, or all, in any order."""
    fields = "" if pool is None else f"spec.pool={pool}"
    bodies = await client.list(ALLOCATION_DECISION, fields=fields)
    return [AllocationDecision.parse(body) for body in bodies]


async def list_overrides(client: KubeClient) -> Sequence[ComputeOverride]:
    """List all overrides, in any order."""
    return [ComputeOverride.parse(body) for body in await client.list(COMPUTE_OVERRIDE)]
