"""Read one object and its related objects as far as the user may, and report its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import PermanentError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.operations.listing import Lister
from tidegate.reports.state import Served
from tidegate.reports.status import Beside, StatusReport
from tidegate.reports.status_access import access_status
from tidegate.reports.status_feature import feature_status
from tidegate.reports.status_inference import inference_status
from tidegate.reports.status_pool import InPool, pool_status
from tidegate.resources.names import ACCESS_LABEL, FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, label_value


async def status_of(client: KubeClient, kind: Kind, key: ObjectKey) -> StatusReport:
    """Report the status of an object of one of the four kinds with a state.

    Raises TidegateError if it does not exist.
    """
    body = await client.get(kind, key)
    if body is None:
        location = f" in namespace {key.namespace}" if key.namespace else ""
        command = "kubectl get -A" if kind.namespaced else "kubectl get"
        message = f"there is no {kind} {key.name}{location}: {command} {kind.plural} shows those there are"
        raise PermanentError(message)
    reader = Lister(client, (key.namespace,))
    if kind == kinds.INFERENCE:
        return await _inference(reader, Inference.parse(body))
    if kind == kinds.MODEL_ACCESS:
        return await _access(reader, ModelAccess.parse(body))
    if kind == kinds.FEATURE_COMPUTE:
        return await _features(reader, FeatureCompute.parse(body))
    return await _pool(client, ComputePool.parse(body))


async def _inference(reader: Lister, one: Inference) -> StatusReport:
    accesses = await reader.read(kinds.MODEL_ACCESS, ModelAccess)
    overrides = await reader.read(kinds.COMPUTE_OVERRIDE, ComputeOverride)
    return inference_status(one, accesses, overrides, await _beside(reader, one, INFERENCE_LABEL))


async def _access(reader: Lister, one: ModelAccess) -> StatusReport:
    inferences = await reader.read(kinds.INFERENCE, Inference)
    return access_status(one, inferences, await _beside(reader, one, ACCESS_LABEL))


async def _features(reader: Lister, one: FeatureCompute) -> StatusReport:
    return feature_status(one, await _beside(reader, one, FEATURE_COMPUTE_LABEL))


async def _pool(client: KubeClient, one: ComputePool) -> StatusReport:
    # Inferences of a pool can be in any namespace; events about cluster-wide objects are in `default`.
    reader, events = Lister(client, ("",)), Lister(client, ("default",))
    decisions = await reader.read(
        kinds.ALLOCATION_DECISION, AllocationDecision, fields=f"spec.pool={one.metadata.name}"
    )
    contents = InPool(
        inferences=await reader.read(kinds.INFERENCE, Inference),
        decisions=decisions,
        overrides=await reader.read(kinds.COMPUTE_OVERRIDE, ComputeOverride),
    )
    pool_events = await _events(events, one)
    related = Beside(datetime.now(UTC), events=pool_events, skipped=(*reader.skipped, *events.skipped))
    return pool_status(one, contents, related)


async def _beside(reader: Lister, one: Served, label: str) -> Beside:
    events = await _events(reader, one)
    pods = await reader.bodies(kinds.POD, selector=f"{label}={label_value(one.metadata.name)}")
    return Beside(datetime.now(UTC), events=events, pods=pods, skipped=tuple(reader.skipped))


async def _events(reader: Lister, one: Served) -> Sequence[Mapping[str, Any]]:
    return await reader.bodies(kinds.EVENT, fields=f"involvedObject.uid={one.metadata.uid}")
