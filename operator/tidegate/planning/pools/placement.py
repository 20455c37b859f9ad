"""Place an Inference: how many replicas its pool runs, on which resources, and what the status says about it.

Assigned slices are sticky, so a pool that loses nodes or gets a lower ceiling stops nothing that runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import LiveWorkload
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.compute_pool import judge_readiness
from tidegate.planning.pools.packing import MovablePods, plan_packing
from tidegate.planning.pools.pool_claims import ASSIGNING_REASONS, PoolClaims, SliceLedger, refuse_claim
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.slices import SliceResources, make_slice_resources


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What an Inference's pool gives it now."""

    resources: SliceResources | None
    """What each pod gets; None leaves the pods as they are, except for those beyond `replicas`."""
    replicas: int
    """Pods that it has now."""
    verdict: Verdict
    assigned_replicas: int = 0
    """Pods with slices of the pool; fewer than `replicas` while pods without slices of their own stay as they are."""
    pool: str = ""
    """The pool's name; empty if there are several."""
    pools: tuple["PlacementResult", ...] = ()
    """What each of several pools gives, in the order of the Inference's list; empty for one pool."""
    remedy: str = ""
    """What makes room for a pod that no node takes, where moves of other pods do; or empty."""


def place_without_pool(name: str, replicas: int, live: LiveWorkload | None) -> PlacementResult:
    """Return the placement of an Inference whose pool does not exist: its pods stay, as many as it still asks for."""
    running = min(live.replicas, replicas) if live is not None else 0
    stays = f"; its {running} pods stay as they are" if running else ""
    message = f"there is no ComputePool {name}{stays}: make it, or correct spec.placement"
    verdict = Verdict(False, Reason.POOL_NOT_FOUND, message, stalled=True)
    return PlacementResult(None, running, verdict, pool=name)


def place_claim(
    claim: PoolClaim, live: LiveWorkload | None, pool: ComputePool, slices: PoolSlices, claims: PoolClaims
) -> PlacementResult:
    """Place the Inference of `claim` in its pool; `claims` are all claims on the pool, this one among them."""
    assignments = claims.assign_slices(pool, slices)
    replicas = assignments.count_replicas(claim.key)
    verdict = _explain_placement(claim, replicas, pool, slices, assignments.ledger)
    running = min(live.replicas, claim.replicas) if live is not None else 0
    if replicas < running:
        # It moves here from elsewhere, or asks for larger replicas: its pods stay until there is room for as many.
        return PlacementResult(None, running, verdict, replicas, pool.metadata.name)
    resources = make_slice_resources(pool, claim.slices, claim.tier)
    return PlacementResult(
        resources,
        replicas,
        verdict,
        replicas,
        pool.metadata.name,
        remedy=_recommend_moves(claim, slices, claims),
    )


def _recommend_moves(claim: PoolClaim, slices: PoolSlices, claims: PoolClaims) -> str:
    """Return the moves that make room on one node for a pod of `claim`, as text; empty where none are needed or possible."""
    on_nodes = sum(share.slices for share in claim.nodes.values())
    if claim.slices == 1 or on_nodes >= claim.assigned or slices.free < claim.slices:
        return ""
    free = {node.node: node.free_slices for node in slices.nodes if node.healthy_slices}
    plan = plan_packing(free, _list_movable_pods(claims), claim.slices)
    if not plan:
        return ""
    moves = ", then ".join(
        f"a replica of {move.inference} ({describe_slices(move.slices)}) from node {move.source} to {move.target}"
        for move in plan
    )
    return f"{slices.free} slices are free, scattered over nodes: to make room, move {moves}"


def _list_movable_pods(claims: PoolClaims) -> Iterator[MovablePods]:
    """Yield the ready pods of all claims by node; offline work moves first, and real-time work last."""
    ranks = {tier: rank for rank, tier in enumerate(reversed(Tier))}
    for claim in claims:
        for node, share in claim.nodes.items():
            if count := share.ready // claim.slices:
                yield MovablePods(claim.key, node, claim.slices, count, ranks[claim.tier])


def _explain_placement(
    claim: PoolClaim, replicas: int, pool: ComputePool, slices: PoolSlices, ledger: SliceLedger
) -> Verdict:
    """Return what the status says about this many replicas; `ledger` has what the claims have after the assignment."""
    name, needed, size = pool.metadata.name, claim.replicas - claim.spares, _describe_size(claim)
    if replicas >= needed:
        message = f"ComputePool {name} gives {replicas} replicas {size} each"
        return Verdict(True, Reason.PLACED, message + _describe_spares(replicas - needed))
    ready = judge_readiness(pool, slices)
    if ready.reason not in ASSIGNING_REASONS:
        message = f"ComputePool {name} takes no pods: {ready.message}"
        return Verdict(False, Reason.POOL_NOT_READY, message, stalled=ready.stalled)
    refusal = refuse_claim(pool, slices, claim)
    if refusal is not None:
        return Verdict(False, refusal.reason, f"ComputePool {name}: {refusal.message}", stalled=True)
    short = f"ComputePool {name} gives {replicas} of {needed} replicas their {size}"
    lower = (
        f"lower {'spec.scaling.minReplicas' if claim.scaled else 'spec.replicas'} or spec.placement.slices"
    )
    assigned, bounds = ledger.assigned_slices, pool.spec.tiers
    ceiling = bounds.bounds_for(claim.tier).ceiling
    if ceiling is not None and ceiling - assigned[claim.tier] < claim.slices:
        message = (
            f"{short}: tier {claim.tier.value} has {assigned[claim.tier]} slices and a ceiling of {ceiling}; "
            f"{lower}, or raise the ceiling in the pool's spec.tiers"
        )
        return Verdict(False, Reason.TIER_FULL, message, stalled=True)
    room = max(ledger.count_room(claim.tier, pool, slices), 0)
    tiers = ", ".join(_describe_tier(tier, assigned[tier], bounds.bounds_for(tier).floor) for tier in Tier)
    message = (
        f"{short}: of {slices.healthy} healthy slices {room} are left to tier {claim.tier.value} ({tiers}); {lower}, "
        "or add nodes to the pool"
    )
    return Verdict(False, Reason.POOL_FULL, message, stalled=True)


def _describe_spares(spares: int) -> str:
    if spares <= 0:
        return ""
    return f", {spares} of them as warm spares" if spares > 1 else ", 1 of them as a warm spare"


def _describe_size(claim: PoolClaim) -> str:
    return describe_slices(claim.slices)


def describe_slices(count: int) -> str:
    """Return a number of slices in words."""
    return "1 slice" if count == 1 else f"{count} slices"


def _describe_tier(tier: Tier, assigned: int, floor: int) -> str:
    return f"{tier.value} has {assigned}" + (f" and a floor of {floor}" if floor else "")
