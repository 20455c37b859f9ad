"""What the allocator knows about lost nodes: a pool's policy, an Inference's own choice, and the nodes of its pods."""

from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Final

from tidegate.allocation.snapshot import NodeLossInput, NodeReplicas
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, NodeLossMode
from tidegate.planning.pools.claims import PoolClaim

_NODE_GRACE: Final = timedelta(seconds=50)
"""Time until Kubernetes 1.32 and later report a silent node as not ready (node-monitor-grace-period)."""
LOST_REQUEST_FACTOR: Final = 100.0
"""How many answered requests a lost one costs: slo.latencyP99 lets 1 in 100 fail, so each uses the allowance of 100."""


def price_node_loss(pool: ComputePool) -> NodeLossInput:
    """Return how often nodes are lost, and after what time the allocator knows."""
    policy, second = pool.spec.policy, timedelta(seconds=1)
    noticed = _NODE_GRACE + parse_duration(policy.interval)
    expected = parse_duration(policy.node_loss.expected_every)
    return NodeLossInput(expected / second, noticed / second, LOST_REQUEST_FACTOR)


def is_strict(pool: ComputePool, inference: Inference) -> bool:
    """Return whether an Inference holds what it takes to lose a node, whatever that costs."""
    return _find_mode(pool, inference) is NodeLossMode.STRICT


def is_shared(pool: ComputePool, inference: Inference) -> bool:
    """Return whether a spare that Inferences share is to serve for an Inference: a realtime one with spec.scaling."""
    can_be_asked = inference.spec.scaling is not None and inference.spec.tier.traits.has_slo
    return can_be_asked and _find_mode(pool, inference) is NodeLossMode.SHARED


def _find_mode(pool: ComputePool, inference: Inference) -> NodeLossMode:
    scaling = inference.spec.scaling
    mode = None if scaling is None else scaling.node_loss
    return mode or pool.spec.policy.node_loss.mode


def list_ready_by_node(claim: PoolClaim, nodes: AbstractSet[str]) -> tuple[NodeReplicas, ...]:
    """Return the ready replicas on each of a pool's healthy nodes, the fullest first; empty if they are spread evenly.

    Pods on other nodes do not count: their replacements start on healthy ones.
    """
    if not claim.tier.traits.has_slo or len(nodes) < 2:
        return ()
    counts = {node: share.ready // claim.slices for node, share in claim.nodes.items() if node in nodes}
    placed = [NodeReplicas(node, count) for node, count in counts.items() if count]
    fewest = min(counts[item.node] for item in placed) if len(placed) == len(nodes) else 0
    if max((item.replicas for item in placed), default=0) - fewest <= 1:
        return ()
    return tuple(sorted(placed, key=lambda item: (-item.replicas, item.node)))
