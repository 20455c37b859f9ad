"""Why a shared spare is where it is, and why an Inference has none, in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

from tidegate.allocation.shared_spares import NodeShares, SharedSpare, SpareRules
from tidegate.api.quantities import parse_quantity
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.spare_members import NO_NODE
from tidegate.planning.inference.node_resources import format_amount

_NAMED: Final = 3
_ROUNDING: Final = 1e-6


def explain_missing(
    observed: AllocationObserved, inference: NodeShares, rules: SpareRules, obstacle: str
) -> str:
    """Return why no spare covers an Inference, with what to change; `obstacle` is what limits the slices of spares."""
    healthy = observed.slices.healthy_nodes
    if healthy <= inference.busy_by_node.keys():
        nodes = "the only healthy node" if len(healthy) == 1 else f"all {len(healthy)} healthy nodes"
        return f"it has replicas on {nodes}, so a spare would be lost with some of them: add nodes"
    largest = max(
        (
            node.healthy_slices
            for node in observed.slices.nodes
            if node.healthy_slices and node.node not in inference.busy_by_node
        ),
        default=0,
    )
    if inference.slices > largest:
        return (
            f"it needs a spare with {inference.slices} slices, and the nodes without its replicas have at most {largest}: "
            "add a larger node, or give its replicas fewer slices"
        )
    room = rules.limit_bytes(inference.slices)
    if 2 * inference.model_bytes > room:
        size, limit = (
            format_amount("memory", parse_quantity(f"{count:.0f}")) for count in (inference.model_bytes, room)
        )
        return f"its model has {size}, and a spare with {inference.slices} slices has {limit} for two versions of it: make slices larger"
    spares = "1 spare" if inference.spares_needed == 1 else f"{inference.spares_needed} spares"
    return f"it needs {spares} with {inference.slices} slices each, and {obstacle}"


def explain_spare(spare: SharedSpare, by_key: Mapping[str, NodeShares]) -> str:
    """Return which node's loss takes most of a spare, and whose requests then come to it."""
    if spare.closes:
        return f"node {spare.node} takes no new pods: its models stay until other spares have loaded them"
    if spare.kept_models.issuperset(spare.models):
        return "nothing needs its models any more: they stay for policy.dwell"
    inferences = [by_key[key] for key in spare.models if key not in spare.kept_models]
    nodes = {node for inference in inferences for node in inference.busy_by_node}
    if not nodes:
        return "its models move to other spares, and stay until these have loaded them"

    def list_parts(node: str) -> list[tuple[float, str]]:
        # In tenths: a text that follows every request would have the pool's status written again and again.
        parts = [
            (
                ceil(10 * inference.busy_by_node[node] / inference.spares_needed - _ROUNDING) / 10,
                inference.key.partition("/")[2],
            )
            for inference in inferences
            if inference.busy_by_node.get(node)
        ]
        return sorted(parts, key=lambda part: (-part[0], part[1]))

    node = max(sorted(nodes), key=lambda place: sum(busy for busy, _ in list_parts(place)))
    parts = list_parts(node)
    named = ", ".join(f"{name} ({busy:.2g})" for busy, name in parts[:_NAMED])
    rest = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    total = sum(busy for busy, _ in parts)
    if node.startswith(NO_NODE):
        return f"replicas of {named}{rest} have no node yet: {total:.2g} busy replicas' requests come here"
    return f"the loss of node {node} takes {total:.2g} busy replicas of {named}{rest}, and no other node's takes more"
