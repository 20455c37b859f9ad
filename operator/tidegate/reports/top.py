"""Report the current use of pools and Inferences: slices, requests, latency, and value per slice if known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Annotated, Final, Self

from pydantic import Field

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool, PolicyMode, TierUsage
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.planning.access.value_classes import add_rest, average_value
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape
from tidegate.reports.orders import TopOrder
from tidegate.reports.report import Report, align_columns, format_count, format_name
from tidegate.reports.shared import format_tier_slices
from tidegate.reports.state import ObjectReport, ObjectState

_NO_METRICS: Final = InferenceMetrics()


@dataclass(frozen=True, slots=True)
class TopInputs:
    """A sample of the gateways, the allocator's demand, and why anything is missing."""

    scrape: MetricsScrape
    window_s: float
    now: datetime
    demand: Mapping[str, float] = field(default_factory=dict[str, float])
    """The allocator's requests per second, by Inference."""
    notes: Sequence[str] = ()

    def find_metrics(self, key: ObjectKey) -> InferenceMetrics:
        """Return the gateways' figures about an Inference; empty if they have none."""
        return self.scrape.by_key.get(key, _NO_METRICS)


class ModelTop(ApiModel):
    """One Inference."""

    inference: str
    tier: Tier
    pool: str | None
    state: ObjectState
    ready: int
    decided: int
    decided_pods: Annotated[int, Field(exclude=True)]
    pool_names: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    """Replicas and warm spares, against which ready ones are counted."""
    slices: int | None
    """The slices of its ready replicas; absent outside of pools."""
    requests_per_second: float | None
    """Requests that clients sent through gateways, rejected ones included."""
    served_per_second: float | None
    latency_p99_ms: float | None
    """At the gateways."""
    p99_unanswered: bool
    """Whether more than one request in a hundred had no answer in time, so that the p99 is unknown."""
    slo_ms: float | None
    demand_per_second: float | None
    """The demand that the allocator assumes."""
    value_per_second: float | None
    value_per_slice: float | None

    @property
    def searched_text(self) -> str:
        """Return what a filter looks in, in lower case."""
        return f"{self.inference} {self.tier} {self.pool or ''} {self.state}".lower()

    @property
    def misses_slo(self) -> bool:
        """Return whether the Inference is known to be slower than its SLO."""
        if self.slo_ms is None:
            return False
        return self.p99_unanswered or (self.latency_p99_ms is not None and self.latency_p99_ms > self.slo_ms)


class TopReport(Report):
    """A table whose rows a person sorts and filters."""

    @abstractmethod
    def arrange_rows(self, order: TopOrder, text: str) -> Self:
        """Return the report with the rows whose names contain `text`, in this order if it has more than one."""


class TopInferences(TopReport):
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

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a row per Inference; `wide` adds state, served requests and the allocator's demand."""
        if self.items:
            head = ["INFERENCE", "TIER", "POOL", "READY", "SLICES", "REQ/S", "P99 MS", "SLO MS", "VALUE/S"]
            head.append("VALUE/SLICE")
            rows = [[*head, "STATE", "SERVED/S", "DEMAND/S"] if wide else head]
            rows += [_render_inference(model, wide=wide) for model in self.items]
            yield from align_columns(rows)
        yield from _render_notes(self.notes)

    def empty_message(self) -> str:
        """Return that there is no Inference, and where."""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return "" if self.items else f"no Inference{place}"

    def arrange_rows(self, order: TopOrder, text: str) -> Self:
        """Return the report with the Inferences whose name, tier, pool or state contains `text`, in this order."""
        chosen = (model for model in self.items if text.lower() in model.searched_text)
        return self.model_copy(update={"items": _sort_models(chosen, order)})

    def object_names(self) -> Iterator[str]:
        """Yield the Inferences."""
        return (format_name(Inference.KIND, model.inference.rpartition("/")[2]) for model in self.items)


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
    tiers: tuple[TierUsage, ...]
    inferences: int
    requests_per_second: float | None
    """The sum over its Inferences with known requests."""
    value_per_second: float | None
    value_per_slice: float | None
    """The value per assigned slice."""
    unknown: int
    """The number of its Inferences with ready replicas and an unknown value, which the sums leave out."""
    price: float | None
    """What one more slice would have earned per second at the newest decision."""


class TopPools(TopReport):
    """ComputePools, the fullest first."""

    window_seconds: float
    gateways_silent: tuple[str, ...]
    items: tuple[PoolTop, ...]
    notes: tuple[str, ...]
    """Why figures are missing."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a row per pool; `wide` adds its tiers."""
        if self.items:
            head = ["POOL", "MODE", "NODES", "USED", "HEALTHY", "USE", "MODELS", "REQ/S", "VALUE/S"]
            head += ["VALUE/SLICE", "PRICE"]
            rows = [[*head, *(tier.upper() for tier in Tier)] if wide else head]
            rows += [_render_pool(pool, wide=wide) for pool in self.items]
            yield from align_columns(rows)
        for pool in self.items:
            if pool.unknown:
                yield f"note   {pool.pool}: of {pool.unknown} of its Inferences the value is not known, and not in the sums"
        yield from _render_notes(self.notes)

    def empty_message(self) -> str:
        """Return that there is no ComputePool."""
        return "" if self.items else "no ComputePool"

    def arrange_rows(self, order: TopOrder, text: str) -> Self:
        """Return the report with the pools whose names contain `text`; they have one order."""
        return self.model_copy(
            update={"items": tuple(pool for pool in self.items if text.lower() in pool.pool)}
        )

    def object_names(self) -> Iterator[str]:
        """Yield the pools."""
        return (format_name(ComputePool.KIND, pool.pool) for pool in self.items)


def report_inferences(
    inferences: Iterable[Inference],
    inputs: TopInputs,
    namespace: str | None,
    order: TopOrder = TopOrder.REQUESTS,
) -> TopInferences:
    """Report Inferences from the objects and a sample of the gateways."""
    models = (_report_inference(inference, inputs) for inference in inferences)
    return TopInferences(
        namespace=namespace,
        window_seconds=round(inputs.window_s, 3),
        gateways_silent=inputs.scrape.silent_gateways,
        items=_sort_models(models, order),
        notes=_collect_notes(inputs),
    )


def report_pools(
    pools: Iterable[ComputePool],
    inferences: Sequence[Inference],
    decisions: Sequence[AllocationDecision],
    inputs: TopInputs,
) -> TopPools:
    """Report pools from the objects, all Inferences and decisions, and a sample of the gateways."""
    models = [
        _report_inference(inference, inputs)
        for inference in inferences
        if inference.spec.placement is not None
    ]
    reports = [
        _report_pool(
            pool,
            [model for model in models if pool.metadata.name in model.pool_names],
            [decision for decision in decisions if decision.spec.pool == pool.metadata.name],
        )
        for pool in pools
    ]
    return TopPools(
        window_seconds=round(inputs.window_s, 3),
        gateways_silent=inputs.scrape.silent_gateways,
        items=tuple(sorted(reports, key=lambda pool: (-(pool.use or 0.0), pool.pool))),
        notes=_collect_notes(inputs),
    )


_SORT_KEYS: Final[Mapping[TopOrder, Callable[[ModelTop], tuple[float, ...] | str]]] = {
    TopOrder.REQUESTS: lambda model: (model.requests_per_second or 0.0, model.demand_per_second or 0.0),
    TopOrder.VALUE: lambda model: (model.value_per_slice or 0.0, model.value_per_second or 0.0),
    TopOrder.SLICES: lambda model: (float(model.slices or 0),),
    TopOrder.LATENCY: lambda model: (float(model.p99_unanswered), model.latency_p99_ms or 0.0),
    TopOrder.NAME: lambda model: model.inference,
}


def _sort_models(models: Iterable[ModelTop], order: TopOrder) -> tuple[ModelTop, ...]:
    by_name = sorted(models, key=lambda model: model.inference)
    return tuple(sorted(by_name, key=_SORT_KEYS[order], reverse=order is not TopOrder.NAME))


def _report_inference(inference: Inference, inputs: TopInputs) -> ModelTop:
    reading, placement = inputs.find_metrics(inference.key), inference.spec.placement
    ready = inference.status.ready_replicas
    slices = inference.ready_slices
    p99 = reading.latency_p99_s
    value = _compute_value(inference, reading, slices)
    return ModelTop(
        inference=str(inference.key),
        tier=inference.spec.tier,
        pool=placement.pool_names if placement is not None else None,
        pool_names=tuple(share.name for share in placement.pool_shares) if placement is not None else (),
        state=ObjectReport.from_object(inference).state,
        ready=ready,
        decided=inference.decided_replicas,
        decided_pods=inference.decided_pods,
        slices=slices,
        requests_per_second=_round_number(reading.offered_per_s),
        served_per_second=_round_number(reading.served_per_s),
        latency_p99_ms=_round_number(p99 * 1_000) if p99 is not None and isfinite(p99) else None,
        p99_unanswered=p99 is not None and not isfinite(p99),
        slo_ms=parse_duration(inference.spec.slo.latency_p99).total_seconds() * 1_000
        if inference.spec.slo
        else None,
        demand_per_second=_round_number(inputs.demand.get(str(inference.key))),
        value_per_second=_round_number(value),
        value_per_slice=_round_number(value / slices) if value is not None and slices else None,
    )


def _compute_value(inference: Inference, reading: InferenceMetrics, slices: int | None) -> float | None:
    """Return the value per second: of answered requests, or of assigned slices in tier offline.

    spec.value counts requests, and in tier offline seconds of slices.
    """
    value_per_request = float(inference.spec.value.per_request)
    if not inference.spec.tier.traits.counts_requests:
        return None if slices is None else value_per_request * slices
    if reading.served_per_s is None:
        return None
    classes = add_rest(reading.classes, 0.0, reading.served_per_s)
    served = ((rates.value_or(value_per_request), rates.served_per_s) for rates in classes)
    return average_value(served, value_per_request) * reading.served_per_s


def _report_pool(
    pool: ComputePool, models: Sequence[ModelTop], decisions: Sequence[AllocationDecision]
) -> PoolTop:
    status = pool.status
    used = status.slices.assigned
    values = [model.value_per_second for model in models if model.value_per_second is not None]
    rates = [model.requests_per_second for model in models if model.requests_per_second is not None]
    newest = next(iter(sort_newest_first(decisions)), None)
    return PoolTop(
        pool=pool.metadata.name,
        mode=pool.effective_mode,
        nodes=status.nodes,
        slices=status.slices.total,
        healthy=status.slices.healthy,
        used=used,
        use=round(used / status.slices.healthy, 4) if status.slices.healthy else None,
        tiers=status.ordered_tiers,
        inferences=len(models),
        requests_per_second=_round_number(sum(rates)) if rates else None,
        value_per_second=_round_number(sum(values)) if values else None,
        value_per_slice=_round_number(sum(values) / used) if values and used else None,
        unknown=sum(model.value_per_second is None and model.ready > 0 for model in models),
        price=newest.spec.price if newest is not None else None,
    )


def _collect_notes(inputs: TopInputs) -> tuple[str, ...]:
    notes = list(inputs.notes)
    if inputs.scrape.failure:
        notes.insert(0, f"requests, latency and value are not known: gateways: {inputs.scrape.failure}")
    elif inputs.scrape.silent_gateways:
        silent = ", ".join(inputs.scrape.silent_gateways)
        notes.insert(0, f"requests and value are at least what is said: nothing is known of {silent}")
    return tuple(notes)


def _render_inference(model: ModelTop, *, wide: bool) -> list[str]:
    p99 = "none" if model.p99_unanswered else _format_number(model.latency_p99_ms)
    row = [
        model.inference,
        model.tier.value,
        model.pool or "-",
        f"{model.ready}/{model.decided_pods}",
        format_count(model.slices),
        _format_number(model.requests_per_second),
        f"{p99}!" if model.misses_slo else p99,
        _format_number(model.slo_ms),
        _format_number(model.value_per_second),
        _format_number(model.value_per_slice),
    ]
    return (
        [
            *row,
            model.state.value,
            _format_number(model.served_per_second),
            _format_number(model.demand_per_second),
        ]
        if wide
        else row
    )


def _render_pool(pool: PoolTop, *, wide: bool) -> list[str]:
    row = [
        pool.pool,
        pool.mode.value,
        str(pool.nodes),
        str(pool.used),
        str(pool.healthy),
        "-" if pool.use is None else f"{pool.use:.0%}",
        str(pool.inferences),
        _format_number(pool.requests_per_second),
        _format_number(pool.value_per_second),
        _format_number(pool.value_per_slice),
        _format_number(pool.price),
    ]
    return [*row, *format_tier_slices(pool.tiers)] if wide else row


def _render_notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"note   {note}" for note in notes)


def _round_number(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}" if abs(number) < 1_000 else f"{number:.0f}"
