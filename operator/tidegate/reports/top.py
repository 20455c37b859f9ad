"""What pools and Inferences do right now: slices in use, requests, latency, and value per slice as far as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Final

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool, PolicyMode, TierUse
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.planning.decision import newest_first
from tidegate.planning.signals import Look, Reading
from tidegate.reports.report import Report, columns, named
from tidegate.reports.state import ObjectReport, State

_NOT_SAID: Final = Reading()


class TopBy(StrEnum):
    """What is first."""

    REQUESTS = "requests"
    VALUE = "value"
    SLICES = "slices"
    LATENCY = "latency"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Busy:
    """What was measured and read: a look at the gateways, what the allocator goes by, and why anything is missing."""

    look: Look
    window_s: float
    now: datetime
    demand: Mapping[str, float] = field(default_factory=dict[str, float])
    """By Inference, what the allocator takes its requests per second to be."""
    notes: Sequence[str] = ()

    def reading(self, key: ObjectKey) -> Reading:
        """What the gateways counted of an Inference; nothing where they say nothing of it."""
        return self.look.by_key.get(key, _NOT_SAID)


class ModelTop(ApiModel):
    """One Inference."""

    inference: str
    tier: Tier
    pool: str | None
    state: State
    ready: int
    decided: int
    slices: int | None
    """That its ready replicas have; absent outside of pools."""
    requests_per_second: float | None
    """That clients sent through gateways, refused ones included."""
    served_per_second: float | None
    latency_p99_ms: float | None
    """At the gateways."""
    p99_unanswered: bool
    """Whether more than one request in a hundred had no answer in time, so that there is no such figure."""
    slo_ms: float | None
    demand_per_second: float | None
    """As the allocator takes it to be."""
    value_per_second: float | None
    value_per_slice: float | None

    @property
    def misses_slo(self) -> bool:
        """Whether it is known to be slower than promised."""
        if self.slo_ms is None:
            return False
        return self.p99_unanswered or (self.latency_p99_ms is not None and self.latency_p99_ms > self.slo_ms)


class TopInferences(Report):
    """Inferences, the busiest first."""

    namespace: str | None
    """Absent: all of them."""
    window_seconds: float
    """The time that rates are taken over."""
    gateways_silent: tuple[str, ...]
    """Gateways of which nothing is in the figures, so that sums are at least what is said."""
    items: tuple[ModelTop, ...]
    notes: tuple[str, ...]
    """Why figures are missing."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """A row for each; `wide` has the state, the allocator's demand and what was served besides."""
        if not self.items:
            yield "no Inference" + (f" in namespace {self.namespace}" if self.namespace else "")
        else:
            head = ["INFERENCE", "TIER", "POOL", "READY", "SLICES", "REQ/S", "P99 MS", "SLO MS", "VALUE/S"]
            head.append("VALUE/SLICE")
            rows = [[*head, "STATE", "SERVED/S", "DEMAND/S"] if wide else head]
            rows += [_model_row(each, wide=wide) for each in self.items]
            yield from columns(rows)
        yield from _noted(self.notes)

    def names(self) -> Iterator[str]:
        """Theirs."""
        return (named(Inference.KIND, each.inference.rpartition("/")[2]) for each in self.items)


class PoolTop(ApiModel):
    """One ComputePool."""

    pool: str
    mode: PolicyMode
    nodes: int
    slices: int
    healthy: int
    used: int
    """Healthy ones that pods have."""
    use: float | None
    """Share of the healthy ones, 0 to 1; absent without any."""
    tiers: tuple[TierUse, ...]
    inferences: int
    requests_per_second: float | None
    """Of all its Inferences of which it is known."""
    value_per_second: float | None
    value_per_slice: float | None
    """Of those in use."""
    unknown: int
    """Number of its Inferences with ready replicas whose value per second is not known, and is not in the sum."""
    price: float | None
    """What one more slice would have earned per second at the newest decision."""


class TopPools(Report):
    """ComputePools, the fullest first."""

    window_seconds: float
    gateways_silent: tuple[str, ...]
    items: tuple[PoolTop, ...]
    notes: tuple[str, ...]
    """Why figures are missing."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """A row for each; `wide` has the tiers besides."""
        if not self.items:
            yield "no ComputePool"
        else:
            head = ["POOL", "MODE", "NODES", "USED", "HEALTHY", "USE", "MODELS", "REQ/S", "VALUE/S"]
            head += ["VALUE/SLICE", "PRICE"]
            rows = [[*head, *(tier.upper() for tier in Tier)] if wide else head]
            rows += [_pool_row(each, wide=wide) for each in self.items]
            yield from columns(rows)
        for each in self.items:
            if each.unknown:
                yield f"note   {each.pool}: of {each.unknown} of its Inferences the value is not known, and not in the sums"
        yield from _noted(self.notes)

    def names(self) -> Iterator[str]:
        """Theirs."""
        return (named(ComputePool.KIND, each.pool) for each in self.items)


def top_inferences(
    inferences: Iterable[Inference], busy: Busy, namespace: str | None, by: TopBy = TopBy.REQUESTS
) -> TopInferences:
    """From the Inferences, and what was measured."""
    found = sorted((_model(each, busy) for each in inferences), key=lambda each: each.inference)
    return TopInferences(
        namespace=namespace,
        window_seconds=round(busy.window_s, 3),
        gateways_silent=busy.look.silent,
        items=tuple(sorted(found, key=_ORDER[by], reverse=by is not TopBy.NAME)),
        notes=_notes(busy),
    )


def top_pools(
    pools: Iterable[ComputePool],
    inferences: Sequence[Inference],
    decisions: Sequence[AllocationDecision],
    busy: Busy,
) -> TopPools:
    """From the pools, all Inferences and decisions, and what was measured."""
    models = [_model(each, busy) for each in inferences if each.spec.placement is not None]
    found = [
        _pool(
            pool,
            [each for each in models if each.pool == pool.metadata.name],
            [each for each in decisions if each.spec.pool == pool.metadata.name],
        )
        for pool in pools
    ]
    return TopPools(
        window_seconds=round(busy.window_s, 3),
        gateways_silent=busy.look.silent,
        items=tuple(sorted(found, key=lambda each: (-(each.use or 0.0), each.pool))),
        notes=_notes(busy),
    )


_ORDER: Final[Mapping[TopBy, Callable[[ModelTop], tuple[float, ...] | str]]] = {
    TopBy.REQUESTS: lambda each: (each.requests_per_second or 0.0, each.demand_per_second or 0.0),
    TopBy.VALUE: lambda each: (each.value_per_slice or 0.0, each.value_per_second or 0.0),
    TopBy.SLICES: lambda each: (float(each.slices or 0),),
    TopBy.LATENCY: lambda each: (float(each.p99_unanswered), each.latency_p99_ms or 0.0),
    TopBy.NAME: lambda each: each.inference,
}


def _model(one: Inference, busy: Busy) -> ModelTop:
    reading, placement = busy.reading(one.key), one.spec.placement
    ready = one.status.ready_replicas
    slices = None if placement is None else placement.slices * ready
    p99 = reading.latency_p99_s
    value = _value(one, reading, slices)
    return ModelTop(
        inference=str(one.key),
        tier=one.spec.tier,
        pool=placement.pool if placement is not None else None,
        state=ObjectReport.of(one).state,
        ready=ready,
        decided=one.decided_replicas,
        slices=slices,
        requests_per_second=_rounded(reading.offered_per_s),
        served_per_second=_rounded(reading.served_per_s),
        latency_p99_ms=_rounded(p99 * 1_000) if p99 is not None and isfinite(p99) else None,
        p99_unanswered=p99 is not None and not isfinite(p99),
        slo_ms=parse_duration(one.spec.slo.latency_p99).total_seconds() * 1_000 if one.spec.slo else None,
        demand_per_second=_rounded(busy.demand.get(str(one.key))),
        value_per_second=_rounded(value),
        value_per_slice=_rounded(value / slices) if value is not None and slices else None,
    )


def _value(one: Inference, reading: Reading, slices: int | None) -> float | None:
    """Per second: of answered requests; of tier offline of slices at work, as spec.value has it."""
    worth = float(one.spec.value.per_request)
    if one.spec.tier is Tier.OFFLINE:
        return None if slices is None else worth * slices
    return None if reading.served_per_s is None else worth * reading.served_per_s


def _pool(pool: ComputePool, models: Sequence[ModelTop], decisions: Sequence[AllocationDecision]) -> PoolTop:
    status = pool.status
    used = max(status.slices.healthy - status.slices.free, 0)
    values = [each.value_per_second for each in models if each.value_per_second is not None]
    rates = [each.requests_per_second for each in models if each.requests_per_second is not None]
    newest = next(iter(newest_first(decisions)), None)
    return PoolTop(
        pool=pool.metadata.name,
        mode=status.mode or pool.spec.policy.mode,
        nodes=status.nodes,
        slices=status.slices.total,
        healthy=status.slices.healthy,
        used=used,
        use=round(used / status.slices.healthy, 4) if status.slices.healthy else None,
        tiers=status.tiers,
        inferences=len(models),
        requests_per_second=_rounded(sum(rates)) if rates else None,
        value_per_second=_rounded(sum(values)) if values else None,
        value_per_slice=_rounded(sum(values) / used) if values and used else None,
        unknown=sum(each.value_per_second is None and each.ready > 0 for each in models),
        price=newest.spec.price if newest is not None else None,
    )


def _notes(busy: Busy) -> tuple[str, ...]:
    notes = list(busy.notes)
    if busy.look.failure:
        notes.insert(0, f"requests, latency and value are not known: gateways: {busy.look.failure}")
    elif busy.look.silent:
        silent = ", ".join(busy.look.silent)
        notes.insert(0, f"requests and value are at least what is said: nothing is known of {silent}")
    return tuple(notes)


def _model_row(one: ModelTop, *, wide: bool) -> list[str]:
    p99 = "none" if one.p99_unanswered else _number(one.latency_p99_ms)
    row = [
        one.inference,
        one.tier.value,
        one.pool or "-",
        f"{one.ready}/{one.decided}",
        "-" if one.slices is None else str(one.slices),
        _number(one.requests_per_second),
        f"{p99}!" if one.misses_slo else p99,
        _number(one.slo_ms),
        _number(one.value_per_second),
        _number(one.value_per_slice),
    ]
    return (
        [*row, one.state.value, _number(one.served_per_second), _number(one.demand_per_second)]
        if wide
        else row
    )


def _pool_row(one: PoolTop, *, wide: bool) -> list[str]:
    used = {each.name: each.slices for each in one.tiers}
    row = [
        one.pool,
        one.mode.value,
        str(one.nodes),
        str(one.used),
        str(one.healthy),
        "-" if one.use is None else f"{one.use:.0%}",
        str(one.inferences),
        _number(one.requests_per_second),
        _number(one.value_per_second),
        _number(one.value_per_slice),
        _number(one.price),
    ]
    return [*row, *(str(used.get(tier, 0)) for tier in Tier)] if wide else row


def _noted(notes: Iterable[str]) -> Iterator[str]:
    return (f"note   {each}" for each in notes)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}" if abs(number) < 1_000 else f"{number:.0f}"
