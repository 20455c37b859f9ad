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
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.reports.state import StatefulObject
from tidegate.reports.status import RelatedObjects, StatusReport
from tidegate.reports.status_access import report_access
from tidegate.reports.status_feature import report_features
from tidegate.reports.status_inference import report_inference
from tidegate.reports.status_pool import PoolObjects, report_pool
from tidegate.resources.names import ACCESS_LABEL, FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, to_label_value
from tidegate.services.listing import KindLister, list_foreign_targets, list_sharing_accesses
from tidegate.services.objects import read_body


async def read_object_status(client: KubeClient, kind: Kind, key: ObjectKey) -> StatusReport:
    """Report the status of an object of one of the four kinds with a state.

    Raises TidegateError if it does not exist.
    """
    body = await read_body(client, kind, key)
    reader = KindLister(client, (key.namespace,))
    if kind == kinds.INFERENCE:
        return await _read_inference(client, reader, Inference.parse(body))
    if kind == kinds.MODEL_ACCESS:
        return await _read_access(client, reader, ModelAccess.parse(body))
    if kind == kinds.FEATURE_COMPUTE:
        return await _read_features(reader, FeatureCompute.parse(body))
    return await _read_pool(client, ComputePool.parse(body))


async def _read_inference(client: KubeClient, reader: KindLister, inference: Inference) -> StatusReport:
    accesses = await reader.list_parsed(kinds.MODEL_ACCESS, ModelAccess)
    elsewhere, skipped = await list_sharing_accesses(client, [inference], inference.key.namespace)
    reader.skipped.extend(skipped)
    overrides = await reader.list_parsed(kinds.COMPUTE_OVERRIDE, ComputeOverride)
    return report_inference(
        inference, (*accesses, *elsewhere), overrides, await _read_related(reader, inference, INFERENCE_LABEL)
    )


async def _read_access(client: KubeClient, reader: KindLister, access: ModelAccess) -> StatusReport:
    inferences = await reader.list_parsed(kinds.INFERENCE, Inference)
    elsewhere, skipped = await list_foreign_targets(client, [access])
    reader.skipped.extend(skipped)
    return report_access(access, (*inferences, *elsewhere), await _read_related(reader, access, ACCESS_LABEL))


async def _read_features(reader: KindLister, features: FeatureCompute) -> StatusReport:
    return report_features(features, await _read_related(reader, features, FEATURE_COMPUTE_LABEL))


async def _read_pool(client: KubeClient, pool: ComputePool) -> StatusReport:
    # Inferences of a pool can be in any namespace; events about cluster-wide objects are in `default`.
    reader, events = KindLister(client, ("",)), KindLister(client, ("default",))
    decisions = await reader.list_parsed(
        kinds.ALLOCATION_DECISION, AllocationDecision, fields=f"spec.pool={pool.metadata.name}"
    )
    contents = PoolObjects(
        inferences=await reader.list_parsed(kinds.INFERENCE, Inference),
        decisions=decisions,
        overrides=await reader.list_parsed(kinds.COMPUTE_OVERRIDE, ComputeOverride),
    )
    pool_events = await _list_events(events, pool)
    related = RelatedObjects(
        datetime.now(UTC), events=pool_events, skipped=(*reader.skipped, *events.skipped)
    )
    return report_pool(pool, contents, related)


async def _read_related(reader: KindLister, resource: StatefulObject, label: str) -> RelatedObjects:
    events = await _list_events(reader, resource)
    pods = await reader.list_bodies(kinds.POD, selector=f"{label}={to_label_value(resource.metadata.name)}")
    return RelatedObjects(datetime.now(UTC), events=events, pods=pods, skipped=tuple(reader.skipped))


async def _list_events(reader: KindLister, resource: StatefulObject) -> Sequence[Mapping[str, Any]]:
    return await reader.list_bodies(kinds.EVENT, fields=f"involvedObject.uid={resource.metadata.uid}")
