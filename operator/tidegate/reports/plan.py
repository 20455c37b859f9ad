"""Report what the allocator would decide with other inputs, in the shape of its decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Final, Self

from pydantic import Field

from tidegate.api.allocation_decision import (
    AllocationDecisionSpec,
    DecidedMove,
    InferenceMeasuredValue,
    MeasuredValue,
    PredictedOutcome,
)
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.what_if import WhatIf
from tidegate.planning.allocator.latency import LatencyMeasurement, predict_latency
from tidegate.planning.allocator.what_if import InferenceOutcome, WhatIfAnswer
from tidegate.reports.report import Report, format_name

_UNMEASURED: Final[Mapping[str, MeasuredValue]] = {}
_NO_LATENCIES: Final[Mapping[str, LatencyMeasurement]] = {}


class ValueShare(ApiModel):
    """Requests of one value, and their share of all requests of the Inference."""

    value: float
    share: float


class PredictedP99(ApiModel):
    """Time within which 99 of 100 requests would be answered, in milliseconds; its source is in planning.allocator.latency."""

    limit_ms: float
    """The SLO."""
    estimate_ms: float | None = None
    """Absent beyond the capacity, and if nothing reliable was measured."""
    lowest_ms: float | None = None
    """It is not less, if p99 never falls as load rises; absent without such a bound."""
    highest_ms: float | None = None
    """It is not more, likewise; absent beyond the capacity."""

    @classmethod
    def at_load(cls, measured: LatencyMeasurement, demand: float, capacity: float) -> Self:
        """Return the prediction for a demand and the capacity of the replicas, in requests per second."""
        predicted = predict_latency(measured, demand / capacity if capacity > 0 else inf)
        return cls(
            limit_ms=measured.slo_s * 1000,
            estimate_ms=_to_milliseconds(predicted.estimate_s),
            lowest_ms=_to_milliseconds(predicted.lowest_s),
            highest_ms=_to_milliseconds(predicted.highest_s),
        )

    def __str__(self) -> str:
        """Return it as text: "about 31 ms (20 to 50)", "at most 50 ms"."""
        if self.highest_ms is None:
            return f"over {self.limit_ms:.3g} ms"
        if self.estimate_ms is None:
            return f"at most {self.highest_ms:.3g} ms"
        bounds = "at most" if self.lowest_ms is None else f"{self.lowest_ms:.3g} to"
        return f"about {self.estimate_ms:.3g} ms ({bounds} {self.highest_ms:.3g})"


class InferenceOutcomeReport(ApiModel):
    """One Inference of the solver's input."""

    inference: str
    tier: Tier
    demand: float | None
    """Requests per second, in tier offline slices; absent if unknown."""
    wanted: int | None
    """Slices that would serve the demand."""
    serves: float
    """Requests per second that the present replicas serve within the SLO."""
    would_serve: float
    before: int = Field(alias="from")
    """Replicas."""
    after: int = Field(alias="to")
    slices: int
    """Of each replica."""
    least: int
    most: int | None
    value: float
    """Of a request, on average over the mix of the last minutes."""
    mix: tuple[ValueShare, ...] = ()
    """The values and their shares, the highest first, where gateways refuse low values first."""
    p99_before: PredictedP99 | None = None
    """At this demand with the present replicas; absent without an SLO, a measured capacity, or demand."""
    p99_after: PredictedP99 | None = None
    """With the planned replicas, likewise."""

    @classmethod
    def from_outcome(cls, outcome: InferenceOutcome, latency: LatencyMeasurement | None = None) -> Self:
        """Return the report of one Inference of the solver's input."""
        inference = outcome.inference
        p99s = {
            field: PredictedP99.at_load(latency, outcome.demand, outcome.compute_rate(replicas))
            for field, replicas in (
                ("p99Before", outcome.replicas_before),
                ("p99After", outcome.replicas_after),
            )
            if latency is not None and outcome.demand
        }
        return cls.model_validate(
            {
                "inference": inference.key,
                "tier": inference.tier,
                "demand": outcome.demand,
                "wanted": outcome.needed_slices,
                "serves": outcome.compute_rate(outcome.replicas_before),
                "wouldServe": outcome.compute_rate(outcome.replicas_after),
                "from": outcome.replicas_before,
                "to": outcome.replicas_after,
                "slices": inference.placements[0].slices,
                "least": inference.bounds.floor,
                "most": inference.bounds.ceiling,
                "value": inference.value,
                "mix": [
                    {"value": part.value, "share": part.share}
                    for part in (inference.load.classes if inference.load is not None else ())
                ],
                **p99s,
            }
        )


class PlanReport(Report):
    """One what-if question and its answer."""

    pool: str
    seen: datetime
    """The time of the allocator's input that the question changes."""
    question: WhatIf
    now: PredictedOutcome
    """The prediction for the present replicas at the demand of the question."""
    decision: AllocationDecisionSpec
    """The decision that the allocator would make."""
    slices: int
    """The allocatable slices."""
    budget: int | None
    """Slices that may still move within the budget's period; absent if there is no limit."""
    held: bool
    """Whether the pool is held, so that only moves that safety forces are allowed."""
    asked: tuple[InferenceOutcomeReport, ...]
    """The Inferences that the allocator decides about."""
    measured: MeasuredValue | None = None
    """Value per second of what clients sent before, whatever the question changes; absent if nothing was measured."""
    values: tuple[InferenceMeasuredValue, ...] = ()
    """The same for each Inference that got requests, the one with most refused and lost value first."""

    @classmethod
    def from_answer(
        cls,
        answer: WhatIfAnswer,
        observed_at: datetime,
        question: WhatIf,
        values: Mapping[str, MeasuredValue] = _UNMEASURED,
        latencies: Mapping[str, LatencyMeasurement] = _NO_LATENCIES,
    ) -> Self:
        """Return the report of an answer; `values` and `latencies` were measured before, by namespace/name."""
        return cls(
            pool=answer.decision.pool,
            seen=observed_at,
            question=question,
            now=answer.now,
            decision=answer.decision,
            slices=answer.pool.slices,
            budget=answer.pool.movable_slices,
            held=answer.pool.hold,
            asked=tuple(
                InferenceOutcomeReport.from_outcome(outcome, latencies.get(outcome.inference.key))
                for outcome in answer.outcomes
            ),
            measured=_sum_values(values.values()) if values else None,
            values=tuple(
                InferenceMeasuredValue(inference=name, **value.model_dump())
                for name, value in sorted(values.items(), key=_by_unserved_value)
            ),
        )

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the decision; `wide` adds how the solver found it."""
        decision = self.decision
        yield f"ComputePool {self.pool}, as the allocator saw it at {format_timestamp(self.seen)}"
        if not decision.moves:
            yield _format_line("moves", "nothing: everybody has what they would be given")
        for move in decision.moves:
            yield _format_line("moves", _format_move(move))
        for spare in decision.spares:
            yield _format_line("spares", f"{spare.inference} {spare.replicas}")
        for binding in decision.binding:
            price = f", worth {binding.price:g} per second and unit" if binding.price else ""
            yield _format_line("binds", f"{binding.constraint}{price}")
        for rule in decision.not_kept:
            yield _format_line("not kept", f"{rule.rule} of {rule.subject}: {rule.message}")
        after = decision.predicted or PredictedOutcome()
        yield _format_line("value", f"{self.now.value:g} -> {after.value:g} per second")
        yield _format_line(
            "missed",
            f"{self.now.slo_misses:g} -> {after.slo_misses:g} real-time requests per second beyond the SLO, "
            f"worth {self.now.lost:g} -> {after.lost:g}",
        )
        for line in self._render_latencies(wide=wide):
            yield _format_line("p99", line)
        if self.measured is not None:
            yield _format_line("measured", _format_measured(self.measured))
        yield _format_line("price", f"one more slice would earn {decision.price:g} per second")
        if wide:
            gap = "" if decision.gap is None else f", at most {decision.gap:.2%} from the best"
            note = f"; {decision.note}" if decision.note else ""
            yield _format_line("found", f"by {decision.solver} in {decision.seconds:g} s{gap}{note}")

    def _render_latencies(self, *, wide: bool) -> Iterator[str]:
        """Yield the p99 of the Inferences that move, that the question names or that would miss the SLO; `wide`: of all."""
        named = {change.inference for change in self.question.inferences}
        for row in self.asked:
            before, after = row.p99_before, row.p99_after
            if not row.tier.traits.has_slo:
                continue
            if before is None or after is None:
                if row.before != row.after or row.inference in named:
                    yield f"{row.inference} not known: it takes spec.slo, spec.capacity and a demand"
                continue
            if wide or row.before != row.after or row.inference in named or after.highest_ms is None:
                course = str(after) if str(before) == str(after) else f"{before} -> {after}"
                yield f"{row.inference} {course}, the SLO is {after.limit_ms:.3g} ms"

    def object_names(self) -> Iterator[str]:
        """Yield the Inferences that would move."""
        return (
            format_name(Inference.KIND, move.inference.rpartition("/")[2]) for move in self.decision.moves
        )


def _to_milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _format_move(move: DecidedMove) -> str:
    return f"{move.inference} ({move.tier}) {move.before} -> {move.after}: {move.why}"


def _format_measured(value: MeasuredValue) -> str:
    return (
        f"{value.served:.4g} of {value.offered:.4g} value per second served, {value.refused:.4g} refused, "
        f"{value.lost:.4g} lost"
    )


def _sum_values(values: Iterable[MeasuredValue]) -> MeasuredValue:
    listed = tuple(values)
    return MeasuredValue(
        offered=sum(value.offered for value in listed),
        served=sum(value.served for value in listed),
        refused=sum(value.refused for value in listed),
        lost=sum(value.lost for value in listed),
    )


def _by_unserved_value(item: tuple[str, MeasuredValue]) -> tuple[float, float, str]:
    name, value = item
    return -(value.refused + value.lost), -value.offered, name


def _format_line(label: str, text: str) -> str:
    return f"  {label:12}{text}"


@dataclass(frozen=True, slots=True)
class TierDemand:
    """Demand and slices of one tier, of all Inferences that the allocator decides about."""

    tier: Tier
    inferences: int
    unknown: int
    """Inferences with unknown demand; only the sums of slices that they have include them."""
    needed_slices: int
    """Slices that would serve the whole demand."""
    current_slices: int
    planned_slices: int
    """Slices after the decision that the solver would make now."""
    demand: float
    """Requests per second; in tier offline, slices."""
    serves: float
    would_serve: float
    floor: int
    ceiling: int | None


def sum_demand(inferences: Sequence[InferenceOutcomeReport], pool: ComputePool) -> tuple[TierDemand, ...]:
    """Return the demand of every tier, in the tiers' order."""
    return tuple(
        _sum_tier(tier, [inference for inference in inferences if inference.tier is tier], pool)
        for tier in Tier
    )


def _sum_tier(tier: Tier, inferences: Sequence[InferenceOutcomeReport], pool: ComputePool) -> TierDemand:
    bounds = pool.spec.tiers.bounds_for(tier)
    with_demand = [inference for inference in inferences if inference.demand is not None]
    return TierDemand(
        tier,
        inferences=len(inferences),
        unknown=len(inferences) - len(with_demand),
        needed_slices=sum(inference.wanted or 0 for inference in inferences),
        current_slices=sum(inference.before * inference.slices for inference in inferences),
        planned_slices=sum(inference.after * inference.slices for inference in inferences),
        demand=sum(inference.demand or 0.0 for inference in with_demand),
        serves=sum(min(inference.serves, inference.demand or 0.0) for inference in with_demand),
        would_serve=sum(min(inference.would_serve, inference.demand or 0.0) for inference in with_demand),
        floor=bounds.floor,
        ceiling=bounds.ceiling,
    )
