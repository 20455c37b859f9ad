"""Claims: what each Inference wants of a pool, and what it has there, until the last of its pods is gone."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.api.inference import Inference, ModelFormat, Placement, Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.deployments import Holding
from tidegate.planning.pods import is_ready
from tidegate.resources.names import POOL_LABEL, SLICES_LABEL, TIER_LABEL, label_value

_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class SeatedPod:
    """A pod of ours that has a node, and slices of a pool there."""

    pool: str
    """The pool, as a label has it."""
    node: str
    slices: int
    tier: str
    answers: bool = False
    """Whether it is ready, and not on its way out."""


@dataclass(frozen=True, slots=True)
class NodeSeats:
    """Slices of one node that an Inference's pods have."""

    answering: int = 0
    silent: int = 0
    """Those of pods that start, fail, or are on their way out."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one Inference wants of a pool, and what it has."""

    key: ObjectKey
    tier: Tier
    slices: int
    """Slices of each replica."""
    replicas: int
    """Pods that it wants; none where it wants to be elsewhere, or is being deleted."""
    held: int
    """Slices that its Deployment has been given in this pool."""
    made: str
    """When it was made, in a form that sorts."""
    model: ModelFormat = ModelFormat.ONNX
    scaled: bool = False
    """Whether `replicas` was decided, within a range."""
    pods: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slices of its pods by node, where they are more than `held`: some are on their way out."""
    spares: int = 0
    """How many of `replicas` are warm spares, which nobody misses."""
    booked: int = 0
    """Slices that it has just been given, while its Deployment is being written."""
    ready: int = 0
    """Its pods in this pool that answer."""
    seats: Mapping[str, NodeSeats] = field(default_factory=dict[str, NodeSeats])
    """Slices that its pods have in this pool, by node."""

    @property
    def kept(self) -> int:
        """Replicas that it goes on having."""
        return min(self.replicas, self.held // self.slices)

    @property
    def taken(self) -> int:
        """Slices that are its own, whatever it wants now."""
        return max(self.held, sum(self.pods.values()), self.booked)

    def has(self, replicas: int, nodes: Container[str]) -> int:
        """Slices that it has with so many replicas; pods elsewhere than on `nodes` take nothing that can be given."""
        seated = sum(count for node, count in self.pods.items() if node in nodes)
        return max(replicas * self.slices, self.held, seated, self.booked)


def seated_pod(body: Mapping[str, Any]) -> SeatedPod | None:
    """Reads a pod of ours, whose labels are believed; None while it has no node, once it has ended, and where it has no slices."""
    labels, spec = body["metadata"].get("labels") or {}, body.get("spec") or {}
    slices = labels.get(SLICES_LABEL, "")
    ended = (body.get("status") or {}).get("phase") in _ENDED
    if ended or not spec.get("nodeName") or not slices.isdecimal() or POOL_LABEL not in labels:
        return None
    answers = "deletionTimestamp" not in body["metadata"] and is_ready(body)
    return SeatedPod(
        labels[POOL_LABEL],
        spec["nodeName"],
        int(slices),
        labels.get(TIER_LABEL, ""),
        answers=answers,
    )


def claim(
    inference: Inference,
    placement: Placement,
    live: Holding | None,
    pods: Sequence[SeatedPod] = (),
    booked: int = 0,
) -> Claim:
    """The claim of an Inference on the pool of this placement; `live` is its Deployment, `pods` are those of any pool."""
    pool = label_value(placement.pool)
    made = inference.metadata.creation_timestamp
    # Anyone may edit a Deployment, until it is written again: what it has beyond the spec its pods say.
    held = min(_held(live, pool), inference.spec.replicas * placement.slices)
    return Claim(
        key=inference.key,
        tier=inference.spec.tier,
        slices=placement.slices,
        replicas=inference.spec.replicas,
        held=held,
        made=made.isoformat() if made is not None else "",
        model=inference.spec.model.format,
        scaled=inference.spec.scaling is not None,
        pods=_beyond(held, pool, pods),
        spares=inference.decided_spares,
        booked=booked,
        ready=sum(each.answers for each in pods if each.pool == pool),
        seats=_seats(pool, pods),
    )


def remainders(
    key: ObjectKey, live: Holding | None, pods: Sequence[SeatedPod], wanted: str | None
) -> Mapping[str, Claim]:
    """Claims by pool on what an Inference still has where it wants nothing; `wanted` is the pool that it wants.

    It was deleted, or has another pool in its spec: until its pods are gone, their slices are nobody else's.
    """
    tiers = {each.pool: each.tier for each in pods}
    if live is not None and live.pool:
        tiers[live.pool] = live.tier
    found: dict[str, Claim] = {}
    for pool, tier in tiers.items():
        if pool != wanted:
            held, of = _held(live, pool), Tier(tier) if tier in set(Tier) else Tier.REALTIME
            found[pool] = Claim(key, of, 1, 0, held, "", pods=_beyond(held, pool, pods))
    return found


def _held(live: Holding | None, pool: str) -> int:
    return live.replicas * live.slices if live is not None and live.pool == pool else 0


def _seats(pool: str, pods: Iterable[SeatedPod]) -> Mapping[str, NodeSeats]:
    seats: dict[str, NodeSeats] = {}
    for each in pods:
        if each.pool == pool:
            before = seats.get(each.node, NodeSeats())
            answering, silent = (each.slices, 0) if each.answers else (0, each.slices)
            seats[each.node] = NodeSeats(before.answering + answering, before.silent + silent)
    return seats


def _beyond(held: int, pool: str, pods: Iterable[SeatedPod]) -> Mapping[str, int]:
    """The pods that have this pool's slices, where the Deployment does not stand for all of them already."""
    nodes: dict[str, int] = {}
    for each in pods:
        if each.pool == pool:
            nodes[each.node] = nodes.get(each.node, 0) + each.slices
    return nodes if sum(nodes.values()) > held else {}
