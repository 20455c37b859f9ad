"""Placement: how many replicas a pool gives each Inference that wants to run on its slices, and what is said of it.

What an Inference has been given it keeps: only what is still to start waits for room, by tier and then by age. So pods
come and go without anybody else's moving, and a node that fails takes nothing from those on the others.
"""

from dataclasses import dataclass, replace

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.reasons import Reason
from tidegate.planning.claims import Claim
from tidegate.planning.compute_pool import readiness
from tidegate.planning.deployments import Holding
from tidegate.planning.gpu_choice import GpuChoice, GpuLedger
from tidegate.planning.pool_claims import PoolClaims
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.serving_status import Verdict
from tidegate.planning.sharing_out import STILL_GIVES, Admission, Ledger, share_out
from tidegate.resources.sharing.backend import Seat
from tidegate.resources.sharing.choice import sharing_of


@dataclass(frozen=True, slots=True)
class Placing:
    """What an Inference's pool gives it now."""

    seat: Seat | None
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
    sharing = sharing_of(pool)
    if sharing.together is not None:
        return _settled(_place_on_gpu(wanted, sharing.together, pool, slices, claims), wanted, live)
    shares = claims.shares(pool, slices)
    replicas = shares.replicas(wanted.key)
    verdict = _verdict(wanted, replicas, pool, slices, shares.ledger)
    return _settled(Placing(sharing.seat(wanted.slices, wanted.tier), replicas, verdict), wanted, live)


def _place_on_gpu(
    wanted: Claim, per_gpu: int, pool: ComputePool, slices: PoolSlices, claims: PoolClaims
) -> Placing:
    """As `place`, where all pods of an Inference share one GPU of so many slices."""
    gpus = GpuLedger.of(pool, per_gpu, slices.gpus, claims)
    # Slices of GPUs that are still shared as the pool said before are not counted, so nobody who stays there takes any.
    counted = tuple(each for each in claims if each.key == wanted.key or not gpus.is_outdated(each))
    given = share_out(pool, slices, counted, gpus)
    replicas = given[wanted.key]
    verdict = _verdict(wanted, replicas, pool, slices, Ledger.of(pool, slices, counted, given))
    if replicas and gpus.choice(wanted.key) is None:
        gpus.give(wanted, replicas)
    seat, gpu = sharing_of(pool).seat(wanted.slices, wanted.tier), gpus.choice(wanted.key)
    if gpu is None:
        return Placing(seat, replicas, verdict)
    replicas, asked = min(replicas, gpu.room), wanted.replicas - wanted.spares
    if replicas < asked and (gpu.outdated or gpu.room <= replicas or asked > per_gpu):
        verdict = _gpu_full(wanted, gpu, replicas, pool, slices)
    return Placing(replace(seat, gpu_claim=gpu.claim), replicas, verdict)


def _settled(placing: Placing, wanted: Claim, live: Holding | None) -> Placing:
    """What becomes of pods that run now, elsewhere or of another size, once their Inference is to have `placing`."""
    if placing.seat is not None and placing.seat.gpu_claim and wanted.held:
        # It stays where it is, or nothing of it runs there any more.
        return placing
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


def _gpu_full(wanted: Claim, gpu: GpuChoice, given: int, pool: ComputePool, slices: PoolSlices) -> Verdict:
    """All replicas share one GPU, and it has too few slices for them, whatever the pool has."""
    name, asked, per_gpu = pool.metadata.name, wanted.replicas - wanted.spares, sharing_of(pool).together or 0
    short = f"ComputePool {name} gives {given} of {asked} replicas"
    if asked > per_gpu:
        message = (
            f"{short}: all replicas of an Inference share one GPU of {per_gpu} slices there; set spec.replicas to {per_gpu} at "
            "most, or share the requests out over several Inferences by a ModelAccess"
        )
    elif gpu.outdated:
        message = (
            f"{short}: ResourceClaim {gpu.claim} is of another slicesPerGPU than {per_gpu}, and nobody comes to it; drain its "
            "node, and they start on another GPU"
        )
    elif gpu.claim:
        message = (
            f"{short}: ResourceClaim {gpu.claim} has no more slices for it, and all replicas of an Inference share one "
            "GPU; lower spec.replicas, or make a second Inference for the rest"
        )
    else:
        message = (
            f"{short}: each of {slices.gpus} GPUs is shared by a ResourceClaim already, and none of namespace "
            f"{wanted.key.namespace} has a free slice; lower spec.replicas of others here, or add nodes to the pool"
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
