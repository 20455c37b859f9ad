"""Which Inferences can share spares, and what the loss of each node takes from them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import inf
from typing import Final

from tidegate.allocation.curves import linear_curve
from tidegate.allocation.errors import MAX_AMOUNT
from tidegate.allocation.shared_spares import NodeShares, SpareRules, measure_node_shares
from tidegate.allocation.snapshot import ModelInput
from tidegate.api.inference import ArtefactFormat, Inference
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.spare_limits import count_needed
from tidegate.resources.artefact import find_volume_claims

_SHAREABLE: Final = frozenset({ArtefactFormat.ONNX, ArtefactFormat.TORCH_EXPORT, ArtefactFormat.TENSORRT})
NO_NODE: Final = "?"
"""Begins the place of replicas that have no node yet: whatever took them, their requests come to the spare."""
_LEAST_SHARE: Final = 0.05
"""Demand that counts for a model without requests, as a share of what a replica serves: it is loaded on a spare as well."""


def find_obstacle(observed: AllocationObserved, member: PoolMember) -> str:
    """Return why a member can have no shared spare, whatever room there is; empty if it can."""
    spec = member.inference.spec
    if observed.pool.spec.slice.cpu is None:
        return "a process on a shared GPU has one slice, so no spare has several models: set nodeLoss Priced or Strict"
    if member.has_several_pools:
        return "it runs in several pools, and a spare belongs to one: set nodeLoss Priced or Strict"
    if spec.model.format not in _SHAREABLE:
        return (
            f"format {spec.model.format.value} runs code of its own, which could read the other models: export it as ONNX, or "
            "set nodeLoss Priced or Strict"
        )
    own = {
        "spec.logging": spec.logging is not None,
        "spec.model.secretName": spec.model.secret_name is not None,
        "spec.serviceAccountName": spec.service_account_name is not None,
        "a volume claim in spec.model.uri": bool(find_volume_claims((spec.model.uri,))),
    }
    named = [name for name, is_set in own.items() if is_set]
    if named:
        return f"a shared pod has nothing of one Inference, and this one has {' and '.join(named)}: set nodeLoss Priced or Strict"
    return ""


def measure_member(
    observed: AllocationObserved, member: PoolMember, model: ModelInput | None, rules: SpareRules
) -> NodeShares:
    """Return what the loss of each node takes from a member; without a known demand its replicas count as fully busy.

    Only the replicas that demand and bounds need count. Replicas without a healthy node, such as those of a node that was just
    lost, count until they have been replaced.
    """
    healthy = observed.slices.healthy_nodes
    counts: dict[str, int] = {}
    ready: dict[str, int] = {}
    for node, share in member.claim.nodes.items():
        if node in healthy and share.slices >= member.replica_slices:
            counts[node] = share.slices // member.replica_slices
            ready[node] = share.ready // member.replica_slices
    missing = member.assigned_replicas - sum(counts.values())
    if missing > 0:
        counts[f"{NO_NODE}{member.key}"] = missing
    curve, rate = linear_curve(1.0), inf
    if model is not None and model.load is not None:
        curve = model.placements[0].curve
        rate = max(*model.load.rates, _LEAST_SHARE * curve.rate_at(1))
        spare_nodes = {
            live.planned.node
            for live in observed.live_spares
            if live.planned.namespace == member.key.namespace and member.key.name in live.planned.models
        }
        needed = count_needed(model) // member.replica_slices
        _drop_surplus(counts, ready, sum(counts.values()) - needed, spare_nodes)
    shares = measure_node_shares(curve, rate, counts, str(member.key), member.replica_slices, ready)
    return replace(shares, model_bytes=_find_bytes(member.inference, member.replica_slices, rules))


def _drop_surplus(counts: dict[str, int], ready: dict[str, int], surplus: int, spare_nodes: Set[str]) -> None:
    """Leave out replicas beyond those that demand needs, so that a reserve of its own is no reason to have no spare.

    The first are those that do not serve, then those of the fullest nodes; of equal ones, those beside its spares, which can stay.
    """

    def rank_node(node: str) -> tuple[bool, int, bool]:
        return counts[node] > ready.get(node, 0), counts[node], node in spare_nodes

    for _ in range(surplus):
        node = max(sorted(counts), key=rank_node)
        counts[node] -= 1
        ready[node] = min(ready.get(node, 0), counts[node])


def _find_bytes(inference: Inference, slices: int, rules: SpareRules) -> float:
    """Return the memory of the largest version that replicas have measured; without one, an even share of a spare.

    With that share for each, a spare has room for as many models as it may have, and for one to load.
    """
    measured = max((version.bytes for version in inference.status.versions.memory), default=0)
    if measured:
        return min(float(measured), MAX_AMOUNT)
    room = rules.limit_bytes(slices)
    return 0.0 if room == inf else float(room // (rules.max_models + 1))
