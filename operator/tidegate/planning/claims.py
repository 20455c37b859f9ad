"""Claims: what each Inference wants of a pool, and what it has there, until the last of its pods is gone."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.api.inference import Inference, ModelFormat, Placement, Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.deployments import DeploymentView
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


@dataclass(frozen=True, slots=True)
class Claim:
    """What one Inference wants of a pool, and what it has."""

    key: ObjectKey
    tier: Tier
    slices: int
    """Slices of each replica."""
    replicas: int
    """Replicas that it wants; none where it wants to be elsewhere, or is being deleted."""
    held: int
    """Slices that its Deployment has been given in this pool."""
    made: str
    """When it was made, in a form that sorts."""
    model: ModelFormat = ModelFormat.ONNX
    pods: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slices of its pods by node, where they are more than `held`: some are on their way out."""
    booked: int = 0
    """Slices that it has just been given, while its Deployment is being written."""

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
    """Reads a pod of ours; None while it has no node, once it has ended, and where it has no slices."""
    labels, spec = body["metadata"].get("labels") or {}, body.get("spec") or {}
    slices = labels.get(SLICES_LABEL, "")
    ended = (body.get("status") or {}).get("phase") in _ENDED
    if ended or not spec.get("nodeName") or not slices.isdecimal() or POOL_LABEL not in labels:
        return None
    return SeatedPod(labels[POOL_LABEL], spec["nodeName"], int(slices), labels.get(TIER_LABEL, ""))


def claim(
    inference: Inference,
    placement: Placement,
    live: DeploymentView | None,
    pods: Iterable[SeatedPod] = (),
    booked: int = 0,
) -> Claim:
    """The claim of an Inference on the pool of this placement; `live` is its Deployment, `pods` are those of any pool."""
    pool = label_value(placement.pool)
    made, held = inference.metadata.creation_timestamp, _held(live, pool)
    return Claim(
        key=inference.key,
        tier=inference.spec.tier,
        slices=placement.slices,
        replicas=inference.spec.replicas,
        held=held,
        made=made.isoformat() if made is not None else "",
        model=inference.spec.model.format,
        pods=_beyond(held, pool, pods),
        booked=booked,
    )


def remainders(
    key: ObjectKey, live: DeploymentView | None, pods: Sequence[SeatedPod], wanted: str | None
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


def _held(live: DeploymentView | None, pool: str) -> int:
    return live.replicas * live.slices if live is not None and live.pool == pool else 0


def _beyond(held: int, pool: str, pods: Iterable[SeatedPod]) -> Mapping[str, int]:
    """The pods that have this pool's slices, where the Deployment does not stand for all of them already."""
    nodes: dict[str, int] = {}
    for each in pods:
        if each.pool == pool:
            nodes[each.node] = nodes.get(each.node, 0) + each.slices
    return nodes if sum(nodes.values()) > held else {}
