"""Placement: how many replicas a pool gives each Inference that wants to run on its slices, and what is said of it.

What an Inference has been given it keeps: only what is still to start waits for room, by tier and then by age. So pods
come and go without anybody else's moving, and a node that fails takes nothing from those on the others.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from tidegate.api.compute_pool import ComputePool, Tiers
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.claims import Claim, PoolClaims
from tidegate.planning.compute_pool import readiness
from tidegate.planning.deployments import Holding
from tidegate.planning.gpu_choice import GpuChoice, GpuLedger
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.serving_status import Verdict
from tidegate.resources.sharing.backend import Refused, Seat, SharingBackend
from tidegate.resources.sharing.choice import sharing_of

_STILL_GIVES: Final = frozenset({Reason.POOL_READY, Reason.FLOORS_EXCEED_POOL})


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
    if _all_fit(pool, slices, claims) and Admission.of(pool, slices).refusal(wanted) is None:
        replicas, verdict = wanted.replicas, _placed(wanted, wanted.replicas, pool)
    else:
        given = share_out(pool, slices, tuple(claims))
        replicas = given[wanted.key]
        verdict = _verdict(wanted, replicas, pool, slices, tuple(claims), given)
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
    verdict = _verdict(wanted, replicas, pool, slices, counted, given)
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


def _all_fit(pool: ComputePool, slices: PoolSlices, claims: PoolClaims) -> bool:
    """Whether everybody can have all that they want, whoever comes first: then nobody's share depends on others'.

    So it is in most pools most of the time, and with a thousand Inferences sharing out is work.
    """
    tiers, most = pool.spec.tiers, claims.most
    ceilings = ((tiers.of(tier).ceiling, most[tier]) for tier in Tier)
    return (
        sum(max(most[tier], tiers.of(tier).floor) for tier in Tier) <= slices.healthy
        and all(ceiling is None or wanted <= ceiling for ceiling, wanted in ceilings)
        and readiness(pool, slices).reason in _STILL_GIVES
    )


def share_out(
    pool: ComputePool, slices: PoolSlices, claims: Sequence[Claim], gpus: GpuLedger | None = None
) -> Mapping[ObjectKey, int]:
    """Pods for every claim: those that it has, and for the rest what is left to its tier, by tier and age; spares last.

    Where pods share each GPU by a claim, `gpus` says who has which: nobody is given slices that its GPU has not.
    """
    given = {each.key: each.kept for each in claims}
    if readiness(pool, slices).reason not in _STILL_GIVES:
        return given
    ledger, order = _Ledger.of(pool, slices, claims, given), {tier: rank for rank, tier in enumerate(Tier)}
    admission = Admission.of(pool, slices)
    waiting = [each for each in claims if each.kept < each.replicas]
    waiting.sort(key=lambda one: (order[one.tier], one.made, one.key))
    if gpus is not None:
        for each in sorted(claims, key=lambda one: (order[one.tier], one.made, one.key)):
            if each.kept and each.kept == each.replicas:
                gpus.give(each, each.kept)  # those that move to another GPU come before those that start
    wanted = [(each, each.replicas - each.spares) for each in waiting]
    wanted += [(each, each.replicas) for each in waiting if each.spares]
    for each, replicas in wanted:
        before = given[each.key]
        has = each.has(before, ledger.nodes)
        # What it has beyond that, of another size or on its way out, is room for itself and for nobody else.
        left = ledger.room(each.tier) + has - before * each.slices
        more = min(replicas - before, left // each.slices)
        if more <= 0 or admission.refusal(each) is not None:
            continue
        if gpus is not None:
            more = gpus.give(each, before + more) - before
        if more > 0:
            given[each.key] += more
            ledger.has[each.tier] += each.has(given[each.key], ledger.nodes) - has
    return given


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Who has how many slices, and who may have more."""

    bounds: Tiers
    healthy: int
    nodes: Container[str]
    """Those whose slices are counted in `healthy`."""
    has: dict[Tier, int]

    @classmethod
    def of(
        cls, pool: ComputePool, slices: PoolSlices, claims: Sequence[Claim], given: Mapping[ObjectKey, int]
    ) -> Self:
        has, nodes = dict.fromkeys(Tier, 0), slices.healthy_nodes
        for each in claims:
            has[each.tier] += each.has(given[each.key], nodes)
        return cls(pool.spec.tiers, slices.healthy, nodes, has)

    def room(self, tier: Tier) -> int:
        """Slices for more replicas of a tier: not those that floors keep for others, nor above its ceiling.

        Below zero where more has been given than that.
        """
        others = (other for other in Tier if other is not tier)
        kept = sum(max(self.bounds.of(other).floor - self.has[other], 0) for other in others)
        left = self.healthy - sum(self.has.values()) - kept
        ceiling = self.bounds.of(tier).ceiling
        return left if ceiling is None else min(left, ceiling - self.has[tier])


@dataclass(frozen=True, slots=True)
class Admission:
    """Whom a pool takes at all, however many slices are free."""

    sharing: SharingBackend
    largest: int
    """Slices of the largest node."""

    @classmethod
    def of(cls, pool: ComputePool, slices: PoolSlices) -> Self:
        """The rules of a pool as its nodes are now."""
        return cls(sharing_of(pool), slices.largest)

    def refusal(self, wanted: Claim) -> Refused | None:
        """Why no replica of this Inference gets a place; None where it may."""
        if wanted.scaled and self.sharing.together is not None:
            message = (
                "the allocator does not count GPU by GPU, as pools with backend SharedClaim are shared: set spec.replicas "
                f"instead of spec.scaling, {self.sharing.together} at most, or use a pool with backend DevicePlugin"
            )
            return Refused(Reason.SCALING_UNSUPPORTED, message)
        said = self.sharing.refusal(wanted.slices, wanted.model)
        if said is not None or wanted.slices <= self.largest:
            return said
        message = (
            f"a replica wants {wanted.slices} slices on one node, and the largest has {self.largest}: "
            f"set spec.placement.slices to {self.largest} at most, and more replicas instead"
        )
        return Refused(Reason.TOO_MANY_SLICES, message)


def _verdict(
    wanted: Claim,
    replicas: int,
    pool: ComputePool,
    slices: PoolSlices,
    claims: Sequence[Claim],
    given: Mapping[ObjectKey, int],
) -> Verdict:
    if replicas >= wanted.replicas - wanted.spares:
        return _placed(wanted, replicas, pool)
    name, each = pool.metadata.name, _size(wanted)
    ready = readiness(pool, slices)
    if ready.reason not in _STILL_GIVES:
        message = f"ComputePool {name} takes no pods: {ready.message}"
        return Verdict(False, Reason.POOL_NOT_READY, message, stalled=ready.stalled)
    refused = Admission.of(pool, slices).refusal(wanted)
    if refused is not None:
        return Verdict(False, refused.reason, f"ComputePool {name}: {refused.message}", stalled=True)
    ledger = _Ledger.of(pool, slices, claims, given)
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
