"""Placement: how many replicas a pool gives each Inference that wants to run on its slices, and what is said of it.

What an Inference has been given it keeps: only what is still to start waits for room, by tier and then by age. So pods
come and go without anybody else's moving, and a node that fails takes nothing from those on the others.
"""

from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.reasons import Reason
from tidegate.planning.claims import Claim
from tidegate.planning.compute_pool import readiness
from tidegate.planning.deployments import Holding
from tidegate.planning.pool_claims import PoolClaims
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.serving_status import Verdict
from tidegate.planning.sharing_out import STILL_GIVES, Admission, Ledger
from tidegate.resources.slices import SliceResources, slice_resources


@dataclass(frozen=True, slots=True)
class Placing:
    """What an Inference's pool gives it now."""

    resources: SliceResources | None
    """What each pod gets; None leaves the pods that there are as they are, but for those beyond `replicas`."""
    replicas: int
    verdict: Verdict


def without_pool(name: str, replicas: int, live: Holding | None) -> Placing:
    """What becomes of an Inference whose pool is not there: of its pods, those stay that it still wants."""
    running = min(live.replicas, replicas) if live is not None else 0
    stays = f"; its {running} pods stay as they are" if running else ""
    message = f"there is no ComputePool {name}{stays}: make it, or correct spec.placement.pool"
    return Placing(None, running, Verdict(False, Reason.POOL_NOT_FOUND, message, stalled=True))


def place(
    wanted: Claim, live: Holding | None, pool: ComputePool, slices: PoolSlices, claims: PoolClaims
) -> Placing:
    """What `pool` gives the Inference behind `wanted`, one of `claims`, which are all of the pool."""
    shares = claims.shares(pool, slices)
    replicas = shares.replicas(wanted.key)
    verdict = _verdict(wanted, replicas, pool, slices, shares.ledger)
    return _settled(
        Placing(slice_resources(pool, wanted.slices, wanted.tier), replicas, verdict), wanted, live
    )


def _settled(placing: Placing, wanted: Claim, live: Holding | None) -> Placing:
    """What becomes of pods that run now, elsewhere or of another size, once their Inference is to have `placing`."""
    running = live.replicas if live is not None else 0
    stays = min(running, wanted.replicas)
    if placing.replicas < stays:
        # It moves here from elsewhere, or wants larger replicas: until there is room for as many as run, they stay.
        return Placing(None, stays, placing.verdict)
    return placing


def _verdict(wanted: Claim, replicas: int, pool: ComputePool, slices: PoolSlices, ledger: Ledger) -> Verdict:
    """What is said of a share; `ledger` is what everybody has once all have theirs."""
    if replicas >= wanted.replicas - wanted.spares:
        return _placed(wanted, replicas, pool)
    name, each = pool.metadata.name, _size(wanted)
    ready = readiness(pool, slices)
    if ready.reason not in STILL_GIVES:
        message = f"ComputePool {name} takes no pods: {ready.message}"
        return Verdict(False, Reason.POOL_NOT_READY, message, stalled=ready.stalled)
    refused = Admission.of(pool, slices).refusal(wanted)
    if refused is not None:
        return Verdict(False, refused.reason, f"ComputePool {name}: {refused.message}", stalled=True)
    has, bounds = ledger.has, ledger.bounds
    short = f"ComputePool {name} gives {replicas} of {wanted.replicas - wanted.spares} replicas their {each}"
    lower = (
        f"lower {'spec.scaling.minReplicas' if wanted.scaled else 'spec.replicas'} or spec.placement.slices"
    )
    ceiling = bounds.of(wanted.tier).ceiling
    if ceiling is not None and ceiling - has[wanted.tier] < wanted.slices:
        message = (
            f"{short}: tier {wanted.tier.value} has {has[wanted.tier]} slices and a ceiling of {ceiling}; "
            f"{lower}, or raise the ceiling in the pool's spec.tiers"
        )
        return Verdict(False, Reason.TIER_FULL, message, stalled=True)
    tiers = ", ".join(_share(tier, has[tier], bounds.of(tier).floor) for tier in Tier)
    message = (
        f"{short}: of {slices.healthy} healthy slices {max(ledger.room(wanted.tier), 0)} are left to tier "
        f"{wanted.tier.value} ({tiers}); {lower}, or add nodes to the pool"
    )
    return Verdict(False, Reason.POOL_FULL, message, stalled=True)


def _placed(wanted: Claim, replicas: int, pool: ComputePool) -> Verdict:
    message = f"ComputePool {pool.metadata.name} gives {replicas} replicas {_size(wanted)} each"
    spares = replicas - (wanted.replicas - wanted.spares)
    if spares > 0:
        message += f", {spares} of them as warm spares" if spares > 1 else ", 1 of them as a warm spare"
    return Verdict(True, Reason.PLACED, message)


def _size(wanted: Claim) -> str:
    return "1 slice" if wanted.slices == 1 else f"{wanted.slices} slices"


def _share(tier: Tier, has: int, floor: int) -> str:
    return f"{tier.value} has {has}" + (f" and a floor of {floor}" if floor else "")
