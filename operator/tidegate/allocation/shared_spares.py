"""Shared spares: which models are loaded on which spare, so that no node's loss sends more to a spare than it serves.

A shared spare has as many slices as a replica of its largest model, and several models loaded. With k of its n replicas on a lost node,
an Inference sends k/n of its requests to its spare; they take that share of n busy replicas. A spare serves as much as one replica:

    for each spare s and each node j that is not its own:  sum over the models m of s of  u_m k_mj  <=  1,

where u_m is the utilization of a replica. A spare has no model with replicas on its own node, because both would be lost at once.
This is bin packing with one dimension for each node; models are placed by first fit, the largest first, and stay where they are as
long as they fit there, because a change costs a load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, inf
from typing import Final, NamedTuple

from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.errors import InvalidInputError, check_amount, check_count

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class SpareRules:
    """Limits of shared spares in a pool: their slices, the models of one of them, and the bytes of each slice.

    `server_bytes` of a spare are not for models. Beside its models it has room for the largest once more, whose next version is
    loaded beside the one that serves.
    """

    slices: int
    max_models: int = 8
    slice_bytes: float = inf
    server_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_count("sharedSpares.slices", self.slices)
        check_count("sharedSpares.maxModels", self.max_models, minimum=1)

    def limit_bytes(self, slices: int) -> float:
        """Return the bytes that a spare has for models and for loading."""
        return max(self.slice_bytes * slices - self.server_bytes, 0.0)


@dataclass(frozen=True, slots=True)
class NodeShares:
    """A real-time Inference that cannot serve its demand without some node.

    `busy_by_node` has, for each node with replicas, how many busy replicas' work is lost with it: at most its replicas there.
    `model_bytes` is what its model takes in memory. `missing` is how many of its replicas do not serve now: spares serve for them.
    """

    key: str
    slices: int
    busy_by_node: Mapping[str, float]
    model_bytes: float = 0.0
    missing: int = 0

    def __post_init__(self) -> None:
        path = f"inference {self.key}"
        check_count(f"{path}: slices", self.slices, minimum=1)
        check_amount(f"{path}: model bytes", self.model_bytes)
        check_count(f"{path}: missing replicas", self.missing)
        for node, busy in self.busy_by_node.items():
            check_amount(f"{path}: replicas on node {node}", busy)

    @property
    def largest_share(self) -> float:
        """Return the most busy replicas that the loss of a node takes."""
        return max(self.busy_by_node.values(), default=0.0)

    @property
    def spares_needed(self) -> int:
        """Return on how many spares the model must be loaded: one serves as much as one replica."""
        return ceil(self.largest_share - _ROUNDING)


@dataclass(frozen=True, slots=True)
class SharedSpare:
    """A spare on a node, and the models that are to be loaded there, sorted.

    `loaded` are those that serve already, and `kept_models` those that stay loaded although nothing needs them there. A spare that
    `closes` is on a node that takes no new pods: it serves its models until others have loaded them.
    """

    number: int
    node: str
    slices: int
    models: tuple[str, ...] = ()
    loaded: frozenset[str] = frozenset()
    kept_models: frozenset[str] = frozenset()
    closes: bool = False


@dataclass(frozen=True, slots=True)
class SparePlan:
    """Spares with their models, in the order in which they came; `uncovered` are the Inferences that fit on none, sorted."""

    spares: tuple[SharedSpare, ...]
    uncovered: tuple[str, ...] = ()

    @property
    def slice_count(self) -> int:
        """Return the slices of all spares."""
        return sum(spare.slices for spare in self.spares)


def measure_node_shares(
    curve: CapacityCurve,
    rate: float,
    replicas_by_node: Mapping[str, int],
    key: str,
    slices: int,
    ready_by_node: Mapping[str, int] | None = None,
) -> NodeShares:
    """Return what the loss of each node takes from an Inference with a demand of `rate` requests per second.

    A node without which the other replicas still serve the demand takes nothing. With `ready_by_node`, only so many replicas of
    each node serve now; without it all do.
    """
    ready_by_node = replicas_by_node if ready_by_node is None else ready_by_node
    replicas, ready = sum(replicas_by_node.values()), sum(ready_by_node.values())
    capacity = curve.rate_at(replicas)
    utilization = min(rate / capacity, 1.0) if capacity > 0 else 1.0
    return NodeShares(
        key,
        slices,
        {
            node: utilization * count
            for node, count in replicas_by_node.items()
            if count and curve.rate_at(ready - ready_by_node.get(node, 0)) < min(rate, capacity)
        },
        missing=max(replicas - ready, 0),
    )


def plan_shared_spares(
    inferences: Iterable[NodeShares],
    nodes: Sequence[str],
    rules: SpareRules,
    current: Sequence[SharedSpare],
    free_slices: Mapping[str, int] | None = None,
    node_slices: Mapping[str, int] | None = None,
) -> SparePlan:
    """Return the spares that serve what the loss of any node takes from these Inferences, with as few changes as possible.

    Spares that serve for missing replicas stay beyond the limit of slices, until these serve. New spares go to the nodes with the
    fewest spares; of these, to those with the least to lose. With `free_slices`, by node, those with room for the spare come first;
    with `node_slices`, the spares of a node have at most its slices. What `current` spares have to keep stays where there is room,
    unless more Inferences could be covered without it. Raises InvalidInputError for two Inferences with one name.
    """
    by_key: dict[str, NodeShares] = {}
    for inference in inferences:
        if inference.key in by_key:
            raise InvalidInputError(f"inference {inference.key}", "is given twice")
        by_key[inference.key] = inference
    places = _Places(nodes, free_slices, node_slices)
    plan = _pack_models(by_key, places, rules, current)
    if not plan.uncovered or not any(spare.kept_models for spare in current):
        return plan
    # Spares that only keep models have slices that others need.
    needed = [
        spare for spare in current if any(by_key[key].spares_needed for key in spare.models if key in by_key)
    ]
    without = _pack_models(
        by_key, places, rules, [replace(spare, kept_models=frozenset()) for spare in needed]
    )
    return without if len(without.uncovered) < len(plan.uncovered) else plan


class _Places(NamedTuple):
    """The nodes of spares, as for plan_shared_spares."""

    nodes: Sequence[str]
    free_slices: Mapping[str, int] | None
    node_slices: Mapping[str, int] | None


def _pack_models(
    by_key: Mapping[str, NodeShares], places: _Places, rules: SpareRules, current: Sequence[SharedSpare]
) -> SparePlan:
    nodes, free_slices, node_slices = places
    needy = {key: inference for key, inference in by_key.items() if inference.spares_needed}
    sizes: defaultdict[str, float] = defaultdict(lambda: inf, node_slices or {})
    packing = _Packing(nodes, rules, needy.values(), free_slices, sizes)
    fitting = [spare for spare in current if spare.node in nodes and spare.slices <= sizes[spare.node]]
    for spare in _select_kept(fitting, rules, needy):
        packing.restore_spare(spare, needy)
    ranked = sorted(needy.values(), key=lambda rival: (-rival.slices, -rival.largest_share, rival.key))
    uncovered = [inference.key for inference in ranked if not packing.cover_model(inference)]
    for spare in current:
        packing.delay_removals(spare, needy)
    for spare in current:
        packing.keep_models(spare, by_key)
    return SparePlan(packing.list_spares(), tuple(sorted(uncovered)))


def _select_kept(
    spares: Sequence[SharedSpare], rules: SpareRules, by_key: Mapping[str, NodeShares]
) -> Sequence[SharedSpare]:
    """Return the spares that stay: beyond the limit only those that serve for missing replicas, or close.

    Of the others those come first that have a model which needs one.
    """
    staying = {
        spare.number
        for spare in spares
        if spare.closes or any(by_key[key].missing for key in spare.loaded & by_key.keys())
    }
    room = rules.slices - sum(spare.slices for spare in spares if spare.number in staying)
    for spare in sorted(spares, key=lambda item: by_key.keys().isdisjoint(item.models)):
        if spare.number not in staying and spare.slices <= room:
            staying.add(spare.number)
            room -= spare.slices
    return [spare for spare in spares if spare.number in staying]


class _OpenSpare:
    """A spare that is filled."""

    def __init__(self, number: int, node: str, slices: int, *, closes: bool = False) -> None:
        self.number, self.node, self.slices, self.closes = number, node, slices, closes
        self.kept_models: set[str] = set()
        """Models that nothing needs here."""
        self.models: dict[str, NodeShares] = {}
        self.held: dict[str, NodeShares] = {}
        """Models that it serves for missing replicas, although it cannot have them for long: they have room until they leave."""
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.model_bytes = 0.0

    def has_room(self, inference: NodeShares, rules: SpareRules) -> bool:
        """Return whether this one can be loaded as well."""
        present = (*self.models.values(), *self.held.values())
        loading = max([inference.model_bytes, *(model.model_bytes for model in present)])
        return (
            inference.slices <= self.slices
            and len(self.models) + len(self.held) < rules.max_models
            and inference.key not in self.models
            and inference.key not in self.held
            and self.model_bytes + inference.model_bytes + loading <= rules.limit_bytes(self.slices)
        )

    def can_serve(self, inference: NodeShares, rules: SpareRules) -> bool:
        """Return whether it serves this one as well, whichever node is lost."""
        parts = inference.spares_needed
        return (
            not self.closes
            and self.has_room(inference, rules)
            and not inference.busy_by_node.get(self.node)
            and all(
                self.busy[node] + busy / parts <= 1 + _ROUNDING
                for node, busy in inference.busy_by_node.items()
            )
        )

    def add_model(self, inference: NodeShares) -> None:
        """Load a model."""
        self.models[inference.key] = inference
        self.model_bytes += inference.model_bytes
        for node, busy in inference.busy_by_node.items():
            self.busy[node] += busy / inference.spares_needed

    def hold_model(self, inference: NodeShares) -> None:
        """Keep room for a model that is loaded."""
        self.held[inference.key] = inference
        self.model_bytes += inference.model_bytes

    def remove_model(self, inference: NodeShares) -> None:
        """Unload a model."""
        del self.models[inference.key]
        self.model_bytes -= inference.model_bytes
        for node, busy in inference.busy_by_node.items():
            self.busy[node] -= busy / inference.spares_needed

    def load_with(self, inference: NodeShares) -> float:
        """Return the busy replicas of the fullest of this one's nodes, if it is added."""
        return max(self.busy[node] + busy for node, busy in inference.busy_by_node.items())


class _Packing:
    """Spares that are filled one model after the other."""

    def __init__(
        self,
        nodes: Sequence[str],
        rules: SpareRules,
        inferences: Iterable[NodeShares],
        free_slices: Mapping[str, int] | None,
        node_slices: Mapping[str, float],
    ) -> None:
        self._nodes, self._rules, self._node_slices = nodes, rules, node_slices
        self._free = None if free_slices is None else dict(free_slices)
        self._spares: list[_OpenSpare] = []
        self._loaded: defaultdict[str, set[int]] = defaultdict(set)
        self._busy: defaultdict[str, float] = defaultdict(float)
        for inference in inferences:
            for node, busy in inference.busy_by_node.items():
                self._busy[node] += busy

    def restore_spare(self, spare: SharedSpare, by_key: Mapping[str, NodeShares]) -> None:
        """Take over a spare with those of its models that still fit."""
        for key in spare.loaded:
            self._loaded[key].add(spare.number)
        restored = _OpenSpare(spare.number, spare.node, spare.slices, closes=spare.closes)
        self._spares.append(restored)
        for key in spare.models:
            inference = by_key.get(key)
            if inference is None or self._count_places(key) >= inference.spares_needed:
                continue
            if restored.can_serve(inference, self._rules):
                restored.add_model(inference)
            elif inference.missing and key in spare.loaded and restored.has_room(inference, self._rules):
                restored.hold_model(inference)

    def cover_model(self, inference: NodeShares) -> bool:
        """Load a model on as many spares as it needs; return False, and load it on none, if they are too few."""
        placed: list[_OpenSpare] = [spare for spare in self._spares if inference.key in spare.models]
        before = len(self._spares)
        while len(placed) < inference.spares_needed:
            spare = self._choose_spare(inference) or self._open_spare(inference)
            if spare is None:
                for other in placed:
                    other.remove_model(inference)
                self._close_spares(before)
                return False
            spare.add_model(inference)
            placed.append(spare)
        return True

    def delay_removals(self, spare: SharedSpare, by_key: Mapping[str, NodeShares]) -> None:
        """Leave models loaded on a spare, as far as it has room, until the spares that they move to have loaded them.

        With a replica on the spare's own node, which may load just now, a model moves while the spare serves for it.
        """
        remaining = next((other for other in self._spares if other.number == spare.number), None)
        if remaining is None:
            return
        for key in sorted(spare.loaded & by_key.keys()):
            inference = by_key[key]
            loaded = self._loaded[key] & {other.number for other in self._spares if key in other.models}
            if len(loaded) >= inference.spares_needed:
                continue
            if key in remaining.held:
                remaining.models[key] = remaining.held[key]
            elif remaining.has_room(inference, self._rules):
                remaining.models[key] = inference
                remaining.model_bytes += inference.model_bytes

    def keep_models(self, spare: SharedSpare, by_key: Mapping[str, NodeShares]) -> None:
        """Leave the models loaded that a spare is to keep, as far as it has room after all others."""
        remaining = next((other for other in self._spares if other.number == spare.number), None)
        for key in sorted(spare.kept_models & by_key.keys()):
            if remaining is not None and remaining.has_room(by_key[key], self._rules):
                remaining.models[key] = by_key[key]
                remaining.model_bytes += by_key[key].model_bytes
                remaining.kept_models.add(key)

    def list_spares(self) -> tuple[SharedSpare, ...]:
        """Return those that have models."""
        return tuple(
            SharedSpare(
                spare.number,
                spare.node,
                spare.slices,
                tuple(sorted(spare.models)),
                kept_models=frozenset(spare.kept_models),
                closes=spare.closes,
            )
            for spare in self._spares
            if spare.models
        )

    def _choose_spare(self, inference: NodeShares) -> _OpenSpare | None:
        """Return the spare that it fills best."""
        fitting = [spare for spare in self._spares if spare.can_serve(inference, self._rules)]
        return max(fitting, key=lambda spare: (spare.load_with(inference), len(spare.models)), default=None)

    def _open_spare(self, inference: NodeShares) -> _OpenSpare | None:
        if self._count_slices() + inference.slices > self._rules.slices:
            return None
        taken: defaultdict[str, int] = defaultdict(int)
        slices: defaultdict[str, int] = defaultdict(int)
        for spare in self._spares:
            taken[spare.node] += 1
            slices[spare.node] += spare.slices
        free = [
            node
            for node in self._nodes
            if not inference.busy_by_node.get(node)
            and slices[node] + inference.slices <= self._node_slices[node]
        ]
        if not free:
            return None
        # Where the fewest replicas are, the spare can serve for the most models.
        node = min(
            free,
            key=lambda place: (not self._has_room(place, inference.slices), taken[place], self._busy[place]),
        )
        numbers = {spare.number for spare in self._spares}
        number = next(number for number in count() if number not in numbers)
        opened = _OpenSpare(number, node, inference.slices)
        if not opened.can_serve(inference, self._rules):
            return None
        self._spares.append(opened)
        if self._free is not None:
            self._free[node] = self._free.get(node, 0) - opened.slices
        return opened

    def _close_spares(self, count: int) -> None:
        """Leave only the first spares, and give back the slices of those that were opened after them."""
        for spare in self._spares[count:]:
            if self._free is not None:
                self._free[spare.node] += spare.slices
        del self._spares[count:]

    def _has_room(self, node: str, slices: int) -> bool:
        return self._free is None or self._free.get(node, 0) >= slices

    def _count_slices(self) -> int:
        return sum(spare.slices for spare in self._spares)

    def _count_places(self, key: str) -> int:
        return sum(key in spare.models for spare in self._spares)
