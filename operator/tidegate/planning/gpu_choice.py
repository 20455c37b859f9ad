"""Which GPU an Inference is on, where pods share each by a ResourceClaim: chosen once, and kept while a pod is there.

A claim belongs to one namespace and a GPU to one claim, and all pods of a Deployment name the same claim. So an Inference
needs a claim of its namespace with room for all of its replicas, or a GPU that nobody has.
"""

from dataclasses import dataclass
from itertools import count

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.planning.claims import Claim, GpuShare, PoolClaims
from tidegate.planning.pool_slices import PoolSlices
from tidegate.resources.sharing.shared_claim import claim_name, is_current


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The claim that the pods of an Inference are to name, and for how many it has slices."""

    claim: str
    """Empty where no GPU has any left."""
    room: int
    """Pods of the Inference that the claim has slices for, those there now among them."""
    outdated: bool = False
    """Whether the claim is of another size than the pool's GPUs are to have: whoever is there stays, and nobody comes."""


def choose_gpu(
    wanted: Claim, replicas: int, per_gpu: int, pool: ComputePool, slices: PoolSlices, claims: PoolClaims
) -> GpuChoice:
    """The GPU of the Inference behind `wanted`: the one that it has, else the fullest with room for all `replicas`.

    Where none has so much and no GPU is left, it is the one with the most room. Of several that are equal, the first by name.
    """
    name = pool.metadata.name
    taken = shares(per_gpu, pool, claims, besides=wanted.key)
    own = ObjectKey(wanted.key.namespace, wanted.gpu_claim)
    if is_current(own.name, name, per_gpu) and wanted.gpus.get(own.name, GpuShare()).taken:
        # Others may have pods beyond their share for a while, in a rollout, say: nobody's own shrinks for that.
        return GpuChoice(own.name, max(per_gpu - taken.get(own, 0), min(wanted.held, per_gpu)))
    if wanted.gpus.get(own.name, GpuShare()).seated:
        return GpuChoice(own.name, wanted.gpus[own.name].taken, outdated=True)
    room = {
        key.name: per_gpu - slices_taken
        for key, slices_taken in sorted(taken.items())
        if key.namespace == own.namespace and slices_taken < per_gpu
    }
    fitting = [each for each in room if room[each] >= replicas]
    if fitting:
        return GpuChoice(*min(((each, room[each]) for each in fitting), key=lambda it: it[1]))
    if len(taken) < slices.gpus:
        names = (claim_name(name, per_gpu, ordinal) for ordinal in count())
        mine = {key.name for key in taken if key.namespace == own.namespace}
        return GpuChoice(next(each for each in names if each not in mine), per_gpu)
    if room:
        return GpuChoice(*max(room.items(), key=lambda it: it[1]))
    return GpuChoice("", 0)


def shares(
    per_gpu: int, pool: ComputePool, claims: PoolClaims, besides: ObjectKey | None = None
) -> dict[ObjectKey, int]:
    """Slices that are somebody's, by claim, of the claims as the pool shares its GPUs out now."""
    found: dict[ObjectKey, int] = {}
    for each in claims:
        for name, share in each.gpus.items():
            if each.key != besides and is_current(name, pool.metadata.name, per_gpu):
                key = ObjectKey(each.key.namespace, name)
                found[key] = found.get(key, 0) + share.taken
    return found
