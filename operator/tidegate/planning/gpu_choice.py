"""Which GPU an Inference is on, where pods share each by a ResourceClaim: chosen once, and kept while a pod is there.

A claim belongs to one namespace and a GPU to one claim, and all pods of a Deployment name the same claim. So an Inference
needs a claim of its namespace with room for all of its replicas, or a GPU that nobody has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Self

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.planning.claims import Claim, GpuShare
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


class GpuLedger:
    """Who has how many slices of which GPU, kept up while more are given out: each choice is made of what is left."""

    def __init__(self, pool: str, per_gpu: int, gpus: int) -> None:
        """`pool` has so many `gpus` that work, of `per_gpu` slices each."""
        self._pool, self._per_gpu, self._gpus = pool, per_gpu, gpus
        self._taken: dict[str, dict[str, int]] = {}
        self._own: dict[ObjectKey, dict[str, int]] = {}
        self._choices: dict[ObjectKey, GpuChoice] = {}

    @classmethod
    def of(cls, pool: ComputePool, per_gpu: int, gpus: int, claims: Iterable[Claim]) -> Self:
        """What everybody has, of the claims as the pool shares its GPUs out now."""
        ledger = cls(pool.metadata.name, per_gpu, gpus)
        for each in claims:
            for name, share in each.gpus.items():
                if ledger._is_current(name):
                    ledger._has(each.key, name, share.taken)
        return ledger

    @property
    def taken(self) -> Mapping[ObjectKey, int]:
        """Slices that are somebody's, by claim."""
        return {
            ObjectKey(namespace, name): slices
            for namespace, of in self._taken.items()
            for name, slices in of.items()
        }

    def choice(self, key: ObjectKey) -> GpuChoice | None:
        """Where an Inference was given slices; None for one that nothing was asked for."""
        return self._choices.get(key)

    def is_outdated(self, one: Claim) -> bool:
        """Whether it stays on a GPU that is shared as the pool no longer says, and whose slices are not counted."""
        return not self._is_current(one.gpu_claim) and one.gpus.get(one.gpu_claim, GpuShare()).seated > 0

    def give(self, wanted: Claim, replicas: int) -> int:
        """How many of `replicas`, those there now among them, its GPU has slices for: they are its own from here on.

        The GPU is the one that it has, else the fullest with room for all `replicas`. Where none has so much and no GPU is left,
        it is the one with the most room. Of several that are equal, the first by name.
        """
        choice = self._stays(wanted) or self._starts(wanted, replicas)
        self._choices[wanted.key] = choice
        given = min(replicas, choice.room)
        if choice.claim and not choice.outdated:
            more = given - self._own.get(wanted.key, {}).get(choice.claim, 0)
            self._has(wanted.key, choice.claim, max(more, 0))
        return given

    def _stays(self, wanted: Claim) -> GpuChoice | None:
        before = self._choices.get(wanted.key)
        on = before.claim if before is not None else wanted.gpu_claim
        own = self._own.get(wanted.key, {}).get(on, 0)
        if own and self._is_current(on):
            room = self._per_gpu - self._taken[wanted.key.namespace][on] + own
            # Others may have pods beyond their share for a while, in a rollout, say: nobody's own shrinks for that.
            kept = min(wanted.held, self._per_gpu) if on == wanted.gpu_claim else 0
            return GpuChoice(on, max(room, kept))
        if self.is_outdated(wanted):
            return GpuChoice(wanted.gpu_claim, wanted.gpus[wanted.gpu_claim].taken, outdated=True)
        return None

    def _starts(self, wanted: Claim, replicas: int) -> GpuChoice:
        own, mine = self._own.get(wanted.key, {}), self._taken.get(wanted.key.namespace, {})
        # What it has elsewhere, on its way out, is in nobody's way but its own.
        others = {name: slices - own.get(name, 0) for name, slices in mine.items()}
        theirs = {name: slices for name, slices in others.items() if slices > 0}
        room = {name: self._per_gpu - slices for name, slices in theirs.items() if slices < self._per_gpu}
        fitting = [(left, name) for name, left in room.items() if left >= replicas]
        if fitting:
            left, name = min(fitting)
            return GpuChoice(name, left)
        if sum(map(len, self._taken.values())) - len(mine) + len(theirs) < self._gpus:
            names = (claim_name(self._pool, self._per_gpu, ordinal) for ordinal in count())
            return GpuChoice(next(each for each in names if each not in theirs), self._per_gpu)
        if room:
            left, name = min((-left, name) for name, left in room.items())
            return GpuChoice(name, -left)
        return GpuChoice("", 0)

    def _has(self, key: ObjectKey, claim: str, slices: int) -> None:
        if slices:
            for of in (self._taken.setdefault(key.namespace, {}), self._own.setdefault(key, {})):
                of[claim] = of.get(claim, 0) + slices

    def _is_current(self, claim: str) -> bool:
        return is_current(claim, self._pool, self._per_gpu)
