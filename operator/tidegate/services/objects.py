"""Read the objects that decisions are about, and the decisions."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import ALLOCATION_DECISION, COMPUTE_OVERRIDE, COMPUTE_POOL, INFERENCE, MODEL_ACCESS


async def read_target(
    client: KubeClient, kind: OverrideKind, key: ObjectKey
) -> tuple[Inference | None, ComputePool | None]:
    """Return the target if it is an Inference, and the pool that it is or is placed in, if that exists.

    Raises PermanentError when the target does not exist.
    """
    if kind is OverrideKind.COMPUTE_POOL:
        return None, await _read_pool(client, key.name, needed=True)
    body = await client.get(INFERENCE, key)
    if body is None:
        message = f'Inference "{key}" not found; list them with "kubectl get inferences -A"'
        raise PermanentError(message)
    inference = Inference.parse(body)
    placement = inference.spec.placement
    return inference, None if placement is None else await _read_pool(client, placement.pool, needed=False)


async def read_access(client: KubeClient, key: ObjectKey) -> ModelAccess:
    """Return a ModelAccess. Raises PermanentError when it does not exist."""
    body = await client.get(MODEL_ACCESS, key)
    if body is None:
        message = (
            f'ModelAccess "{key.name}" not found in namespace "{key.namespace}"; '
            'list them with "kubectl get modelaccesses -A"'
        )
        raise PermanentError(message)
    return ModelAccess.parse(body)


async def list_decisions(client: KubeClient, pool: str | None = None) -> Sequence[AllocationDecision]:
    """List the decisions about one pool, or all, in any order."""
    fields = "" if pool is None else f"spec.pool={pool}"
    bodies = await client.list(ALLOCATION_DECISION, fields=fields)
    return [AllocationDecision.parse(body) for body in bodies]


async def list_overrides(client: KubeClient) -> Sequence[ComputeOverride]:
    """List all overrides, in any order."""
    return [ComputeOverride.parse(body) for body in await client.list(COMPUTE_OVERRIDE)]


async def _read_pool(client: KubeClient, name: str, *, needed: bool) -> ComputePool | None:
    body = await client.get(COMPUTE_POOL, ObjectKey("", name))
    if body is None and needed:
        message = f'ComputePool "{name}" not found; list them with "kubectl get computepools"'
        raise PermanentError(message)
    return None if body is None else ComputePool.parse(body)
