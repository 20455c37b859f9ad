"""Divide the replicas of an Inference among its pools: those that run stay, and the others go where there is room.

Pools are in order of preference. A replica never moves to a better pool by itself: where pools become full and free again, that
would restart it for each of these changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.api.inference import Inference, PoolShare
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import LiveWorkload
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.pools.claims import AssignedPod, PoolClaim, make_claim
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.names import to_label_value


@dataclass(frozen=True, slots=True)
class ListedPool:
    """One pool of an Inference's list, and what the Inference has there."""

    share: PoolShare
    live: LiveWorkload | None
    """The workload whose pods run there, or move there."""
    exists: bool = True
    """Whether the pool exists and is not being deleted."""
    assumed: int = 0
    """Slices that it has been given just now, while its workload is being written."""

    @property
    def running_replicas(self) -> int:
        """Return the replicas that it has."""
        live = self.live.replicas if self.live is not None else 0
        return max(live, self.assumed // self.share.slices)

    @property
    def pool_label(self) -> str:
        """Return the pool's name as a label value."""
        return to_label_value(self.share.name)


@dataclass(frozen=True, slots=True)
class DividedReplicas:
    """Replicas that stay, by pool, and those that have no pool yet."""

    staying: tuple[int, ...]
    pending: int


def divide_replicas(replicas: int, running: Sequence[int]) -> DividedReplicas:
    """Divide the desired replicas among pools, given how many run in each; a surplus ends in the last pools first."""
    staying: list[int] = []
    remaining = replicas
    for count in running:
        staying.append(min(count, remaining))
        remaining -= staying[-1]
    return DividedReplicas(tuple(staying), remaining)


def divide_inference(inference: Inference, places: Sequence[ListedPool]) -> DividedReplicas:
    """Divide the replicas of an Inference among its pools: as their allocators decided, or by what runs where.

    A pool whose allocator has not decided keeps what runs there. Together they are no more than spec.scaling allows: two
    allocators may have decided at the same time.
    """
    scaling, decided = inference.spec.scaling, inference.allocated_pools
    if scaling is None or not decided:
        return divide_replicas(inference.spec.replicas, [place.running_replicas for place in places])
    desired: list[int] = []
    remaining = scaling.max_replicas
    for place in places:
        pool = decided.get(place.share.name)
        count = place.running_replicas if pool is None else pool.replicas + pool.spares
        desired.append(min(count, remaining))
        remaining -= desired[-1]
    return DividedReplicas(tuple(desired), 0)


def make_pool_claims(
    inference: Inference, places: Sequence[ListedPool], pods: Sequence[AssignedPod]
) -> Mapping[str, PoolClaim]:
    """Make the claims of an Inference on its pools, by label.

    Each pool that exists is asked for the replicas without a pool, so that the first one with room wakes the Inference. Only the
    first one is to make room for them.
    """
    divided = divide_inference(inference, places)
    first = next((place for place in places if place.exists), None)
    rates = [
        staying * place.share.relative_capacity
        for place, staying in zip(places, divided.staying, strict=True)
    ]
    claims: dict[str, PoolClaim] = {}
    for place, staying, rate in zip(places, divided.staying, rates, strict=True):
        pending = divided.pending if place.exists or len(places) == 1 else 0
        claim = make_claim(
            inference.narrow_to_pool(place.share.name),
            place.share,
            place.live,
            pods,
            place.assumed,
            replicas=staying + pending,
        )
        spilled = 0 if place is first or len(places) == 1 else pending
        # Where an allocator decides, it computes from the whole demand what is left for its pool.
        divides = inference.spec.scaling is None and sum(rates) > 0
        demand_share = rate / sum(rates) if divides else 1.0
        claims[place.pool_label] = replace(claim, spilled=spilled, demand_share=demand_share)
    return claims


def merge_placements(results: Sequence[PlacementResult], replicas: int) -> PlacementResult:
    """Merge what each pool gives into what an Inference with this many desired replicas has; one result stays as it is."""
    if len(results) == 1:
        return results[0]
    placed = sum(result.replicas for result in results)
    resources = [result.resources for result in results if result.resources is not None]
    return PlacementResult(
        resources=next((item for item in resources if item.devices), next(iter(resources), None)),
        replicas=placed,
        verdict=_judge_results(results, placed, replicas),
        assigned_replicas=sum(result.assigned_replicas for result in results),
        pools=tuple(results),
    )


def _judge_results(results: Sequence[PlacementResult], placed: int, replicas: int) -> Verdict:
    """Return the verdict about all pools; a pool that does not exist is named even if the others have room."""
    places = [f"{result.replicas} in ComputePool {result.pool}" for result in results if result.replicas]
    has = f"{placed} of {replicas} replicas have slices" + (f" ({', '.join(places)})" if places else "")
    missing = [result.verdict.message for result in results if result.verdict.reason is Reason.POOL_NOT_FOUND]
    if missing:
        return Verdict(False, Reason.POOL_NOT_FOUND, f"{has}: {'; '.join(missing)}", stalled=True)
    refusals = [result.verdict for result in results if not result.verdict.holds]
    if placed >= replicas or not refusals:
        return Verdict(True, Reason.PLACED, has)
    message = f"{has}: {'; '.join(refusal.message for refusal in refusals)}"
    return Verdict(False, refusals[0].reason, message, stalled=all(refusal.stalled for refusal in refusals))
