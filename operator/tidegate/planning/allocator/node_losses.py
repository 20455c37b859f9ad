"""What the allocator assumes about lost nodes, from a pool's policy and an Inference's own choice."""

from datetime import timedelta
from typing import Final

from tidegate.allocation.snapshot import NodeLossInput
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, NodeLossMode

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
    scaling = inference.spec.scaling
    mode = None if scaling is None else scaling.node_loss
    return (mode or pool.spec.policy.node_loss.mode) is NodeLossMode.STRICT
