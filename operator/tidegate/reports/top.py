"""Report the current use of pools and Inferences: slices, requests, latency, and value per slice if known."""

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
    """The order of the rows."""

    REQUESTS = "requests"
    VALUE = "value"
    SLICES = "slices"
    LATENCY = "latency"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Busy:
    """A sample of the gateways, the allocator's demand, and why anything is missing."""

    look: Look
    window_s: float
    now: datetime
    demand: Mapping[str, float] = field(default_factory=dict[str, float])
    """The allocator's requests per second, by Inference."""
    notes: Sequence[str] = ()

    def reading(self, key: ObjectKey) -> Reading:
        """Return the gateways' figures about an Inference; empty if they have none."""
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
    """The slices of its ready replicas; absent outside of pools."""
    requests_per_second: float | None
    """Requests that clients sent through gateways, rejected ones included."""
    served_per_second: float | None
    latency_p99_ms: float | None
    """At the gateways."""
    p99_unanswered: bool
    """Whether more than one request in a hundred had no answer in time, so that there is no such figure."""
    slo_ms: float | None
    demand_per_second: float | None
    """The demand that the allocator assumes."""
    value_per_second: float | None
    value_per_slice: float | None

    @property
    def misses_slo(self) -> bool:
        """Return whether the Inference is known to be slower than its SLO."""
        if self.slo_ms is None:
            return False
        return self.p99_unanswered or (self.latency_p99_ms is not None and self.latency_p99_ms > self.slo_ms)


class TopInferences(Report):
    """Inferences, the busiest first."""

    namespace: str | None
    """Absent means all."""
    window_seconds: float
    """The time over which rates are measured."""
    gateways_silent: tuple[str, ...]
    """Gateways that are missing from the figures, so that sums are lower bounds."""
    items: tuple[ModelTop, ...]
    notes: tuple[str, ...]
    """Why figures are missing."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a row per Inference; `wide` adds state, served requests and the allocator's demand."""
        if not self.items:
            yield "no Inference" + (f" in namespace {self.namespace}" if self.namespace else "")
        else:
            head = ["INFERENCE", "TIER", "POOL", "READY", "SLICES", "REQ/S", "P99 MS", "SLO MS", "VALUE/S"]
            head.append("VALUE/SLICE")
            rows = [[*head, "STATE", "SERVED/S", "DEMAND/S"] if wide else head]
            rows += [_model_row(model, wide=wide) for model in self.items]
            yield from columns(rows)
        yield from _noted(self.notes)

    def names(self) -> Iterator[str]:
        """Yield the Inferences."""
        return (named(Inference.KIND, model.inference.rpartition("/")[2]) for model in self.items)


class PoolTop(ApiModel):
    """One ComputePool."""

    pool: str
    mode: PolicyMode
    nodes: int
    slices: int
    healthy: int
    used: int
    """Healthy slices that pods have."""
    use: float | None
    """The used share of the healthy slices, 0 to 1; absent if none is healthy."""
    tiers: tuple[TierUse, ...]
    inferences: int
    requests_per_second: float | None
    """The sum over its Inferences with known requests."""
    value_per_second: float | None
    value_per_slice: float | None
    """The value per slice in use."""
    unknown: int
    """The number of its Inferences with ready replicas and an unknown value, which the sums leave out."""
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
        """Yield a row per pool; `wide` adds its tiers."""
        if not self.items:
            yield "no ComputePool"
        else:
            head = ["POOL", "MODE", "NODES", "USED", "HEALTHY", "USE", "MODELS", "REQ/S", "VALUE/S"]
            head += ["VALUE/SLICE", "PRICE"]
            rows = [[*head, *(tier.upper() for tier in Tier)] if wide else head]
            rows += [_pool_row(pool, wide=wide) for pool in self.items]
            yield from columns(rows)
        for pool in self.items:
            if pool.unknown:
                yield f"note   {pool.pool}: of {pool.unknown} of its Inferences the value is not known, and not in the sums"
        yield from _noted(self.notes)

    def names(self) -> Iterator[str]:
        """Yield the pools."""
        return (named(ComputePool.KIND, pool.pool) for pool in self.items)


def top_inferences(
    inferences: Iterable[Inference], busy: Busy, namespace: str | None, by: TopBy = TopBy.REQUESTS
) -> TopInferences:
    """Report Inferences from the objects and a sample of the gateways."""
    models = sorted((_model(inference, busy) for inference in inferences), key=lambda model: model.inference)
    return TopInferences(
        namespace=namespace,
        window_seconds=round(busy.window_s, 3),
        gateways_silent=busy.look.silent,
        items=tuple(sorted(models, key=_ORDER[by], reverse=by is not TopBy.NAME)),
        notes=_notes(busy),
    )


def top_pools(
    pools: Iterable[ComputePool],
    inferences: Sequence[Inference],
    decisions: Sequence[AllocationDecision],
    busy: Busy,
) -> TopPools:
    """Report pools from the objects, all Inferences and decisions, and a sample of the gateways."""
    models = [_model(inference, busy) for inference in inferences if inference.spec.placement is not None]
    reports = [
        _pool(
            pool,
            [model for model in models if model.pool == pool.metadata.name],
            [decision for decision in decisions if decision.spec.pool == pool.metadata.name],
        )
        for pool in pools
    ]
    return TopPools(
        window_seconds=round(busy.window_s, 3),
        gateways_silent=busy.look.silent,
        items=tuple(sorted(reports, key=lambda pool: (-(pool.use or 0.0), pool.pool))),
        notes=_notes(busy),
    )


_ORDER: Final[Mapping[TopBy, Callable[[ModelTop], tuple[float, ...] | str]]] = {
    TopBy.REQUESTS: lambda model: (model.requests_per_second or 0.0, model.demand_per_second or 0.0),
    TopBy.VALUE: lambda model: (model.value_per_slice or 0.0, model.value_per_second or 0.0),
    TopBy.SLICES: lambda model: (float(model.slices or 0),),
    TopBy.LATENCY: lambda model: (float(model.p99_unanswered), model.latency_p99_ms or 0.0),
    TopBy.NAME: lambda model: model.inference,
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
    """Return the value per second: of answered requests, or of assigned slices in tier offline.

    spec.value counts requests, and in tier offline seconds of slices.
    """
    value_per_request = float(one.spec.value.per_request)
    if one.spec.tier is Tier.OFFLINE:
        return None if slices is None else value_per_request * slices
    return None if reading.served_per_s is None else value_per_request * reading.served_per_s


def _pool(pool: ComputePool, models: Sequence[ModelTop], decisions: Sequence[AllocationDecision]) -> PoolTop:
    status = pool.status
    used = max(status.slices.healthy - status.slices.free, 0)
    values = [model.value_per_second for model in models if model.value_per_second is not None]
    rates = [model.requests_per_second for model in models if model.requests_per_second is not None]
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
        unknown=sum(model.value_per_second is None and model.ready > 0 for model in models),
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
    used = {tier.name: tier.slices for tier in one.tiers}
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
    return (f"note   {note}" for note in notes)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}" if abs(number) < 1_000 else f"{number:.0f}"
