"""The ResourceClaims of a pool that shares its GPUs by them: which there are to be, and which pods their slices are for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.pool_claims import PoolClaims
from tidegate.resources.names import INFERENCE_LABEL, TIER_LABEL, label_value
from tidegate.resources.pod import SLICE_GATE
from tidegate.resources.sharing.shared_claim import claim_of_pod, is_current

_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A ResourceClaim of the pool."""

    key: ObjectKey
    uid: str
    leaving: bool
    """Whether it is being deleted, and waits for the last of its pods."""


@dataclass(frozen=True, slots=True)
class ClaimPod:
    """A pod that names a claim, and has not ended."""

    key: ObjectKey
    claim: ObjectKey
    resource_version: str
    gates: tuple[str, ...]
    leaving: bool
    inference: str = ""
    """The Inference, as a label has it."""
    tier: str = ""
    made: str = ""
    """When it was made, in a form that sorts."""

    @property
    def waits(self) -> bool:
        """Whether it has no slice yet."""
        return SLICE_GATE in self.gates

    @property
    def other_gates(self) -> tuple[str, ...]:
        """Those that are not ours to open."""
        return tuple(each for each in self.gates if each != SLICE_GATE)


@dataclass(frozen=True, slots=True)
class ClaimsPlan:
    """What is to be done about the claims of a pool, in this order."""

    make: tuple[ObjectKey, ...] = ()
    delete: tuple[ClaimView, ...] = ()
    admit: tuple[ClaimPod, ...] = ()
    """Pods whose gate opens."""


def plan_claims(
    pool: ComputePool, claims: PoolClaims, live: Sequence[ClaimView], pods: Sequence[ClaimPod]
) -> ClaimsPlan:
    """Makes claims that Inferences were given, deletes those that nobody has, and lets pods in while there are slices.

    A claim of another size than the pool's keeps the pods that it has and gets no others. A pod has its slice until it is gone,
    also while it finishes its requests.
    """
    mps = pool.spec.slice.mps
    if mps is None:
        return ClaimsPlan()
    given = {
        ObjectKey(each.key.namespace, name)
        for each in claims
        for name, share in each.gpus.items()
        if share.taken
    }
    current = {key for key in given if is_current(key.name, pool.metadata.name, mps.slices_per_gpu)}
    there = {each.key for each in live}
    usable = current & {each.key for each in live if not each.leaving}
    own = {
        (ObjectKey(each.key.namespace, name), label_value(each.key.name)): share.taken
        for each in claims
        for name, share in each.gpus.items()
    }
    return ClaimsPlan(
        make=tuple(sorted(current - there)),
        delete=tuple(each for each in live if each.key not in given and not each.leaving),
        admit=_admitted(usable, mps.slices_per_gpu, own, pods),
    )


def claim_view(body: Mapping[str, Any]) -> ClaimView:
    """Reads a ResourceClaim."""
    metadata = body["metadata"]
    key = ObjectKey(metadata["namespace"], metadata["name"])
    return ClaimView(key, metadata["uid"], "deletionTimestamp" in metadata)


def claim_pod(body: Mapping[str, Any]) -> ClaimPod | None:
    """Reads a pod of ours; None where it names no claim, and once it has ended."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    claim, phase = claim_of_pod(spec), (body.get("status") or {}).get("phase")
    if not claim or phase in _ENDED:
        return None
    return ClaimPod(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        claim=ObjectKey(metadata["namespace"], claim),
        resource_version=metadata["resourceVersion"],
        gates=tuple(each["name"] for each in spec.get("schedulingGates") or ()),
        leaving="deletionTimestamp" in metadata,
        inference=(metadata.get("labels") or {}).get(INFERENCE_LABEL, ""),
        tier=(metadata.get("labels") or {}).get(TIER_LABEL, ""),
        made=metadata.get("creationTimestamp", ""),
    )


def _admitted(
    usable: Collection[ObjectKey],
    per_gpu: int,
    own: Mapping[tuple[ObjectKey, str], int],
    pods: Sequence[ClaimPod],
) -> tuple[ClaimPod, ...]:
    """Pods to let in; `own` are the slices of each claim that each Inference was given.

    Those come first that take their Inference's own slices. One beyond them, as a surge makes it, takes what is nobody's.
    """
    left, owed = dict.fromkeys(usable, per_gpu), dict(own)
    for each in pods:
        if each.claim in left and not each.waits:
            left[each.claim] -= 1
            _take(owed, each)
    order = {tier.value: rank for rank, tier in enumerate(Tier)}
    waiting = [each for each in pods if each.waits and not each.leaving and each.claim in left]
    waiting.sort(key=lambda pod: (order.get(pod.tier, len(order)), pod.made, pod.key))
    admitted: list[ClaimPod] = []
    beyond: list[ClaimPod] = []
    for each in waiting:
        if owed.get((each.claim, each.inference), 0) <= 0:
            beyond.append(each)
        elif left[each.claim] > 0:
            left[each.claim] -= 1
            _take(owed, each)
            admitted.append(each)
    for (claim, _), slices in owed.items():
        if claim in left:
            left[claim] -= max(slices, 0)
    for each in beyond:
        if left[each.claim] > 0:
            left[each.claim] -= 1
            admitted.append(each)
    return tuple(admitted)


def _take(owed: dict[tuple[ObjectKey, str], int], pod: ClaimPod) -> None:
    whose = pod.claim, pod.inference
    owed[whose] = owed.get(whose, 0) - 1
