"""`spec.release` of a ModelAccess: moves traffic to a target in steps, checks it, and rolls back if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator

from tidegate.api.fields import DecimalText, DurationText, ObjectName, SharedName, duration_between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.release_commands import ReleasePhase
from tidegate.api.schema import ListAtomic, ListMap, ValidationRule, ValidationRules

_ALL_PERCENT: Final = 100
MAX_STEPS: Final = 20
MAX_CHECKS: Final = 8
MAX_GATEWAYS: Final = 256
MAX_COUNTS_LENGTH: Final = 8_192
RELEASE_ANNOTATION: Final = "tidegate.io/release"


class ReleaseMetric(StrEnum):
    """Metric of the gateways that a check evaluates."""

    ERROR_RATE = "ErrorRate"
    LATENCY_P99 = "LatencyP99"


class OnFailure(StrEnum):
    """Action after a failed check."""

    ROLLBACK = "Rollback"
    PAUSE = "Pause"


class CheckVerdict(StrEnum):
    """Result of a check."""

    WAITING = "Waiting"
    PASSING = "Passing"
    UNDECIDED = "Undecided"
    FAILED = "Failed"


def _has_valid_error_rate(check: ReleaseCheck) -> bool:
    return check.metric is not ReleaseMetric.ERROR_RATE or (
        check.max is not None and 0 < float(check.max) < 1
    )


class ReleaseCheck(ApiModel):
    """A condition that the target must meet: exactly one of metric and prometheus."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        exactly_one("metric", "prometheus"),
        ValidationRule(
            cel="has(self.metric) && self.metric == 'LatencyP99' "
            "? has(self.maxRatioToStable) && !has(self.max) : has(self.max) && !has(self.maxRatioToStable)",
            message="LatencyP99 takes maxRatioToStable and nothing else; ErrorRate and prometheus take max",
            check=lambda check: (
                (check.max is None) is (check.metric is ReleaseMetric.LATENCY_P99)
                and (check.max_ratio_to_stable is not None) is (check.metric is ReleaseMetric.LATENCY_P99)
            ),
        ),
        ValidationRule(
            cel="!has(self.metric) || self.metric != 'ErrorRate' || !has(self.max) "
            "|| (double(self.max) > 0.0 && double(self.max) < 1.0)",
            message="the max of ErrorRate is a share of all requests: above 0 and below 1, like '0.001'",
            check=_has_valid_error_rate,
            field="max",
        ),
        ValidationRule(
            cel="!has(self.maxRatioToStable) || double(self.maxRatioToStable) >= 1.0",
            message="must be at least 1: a target no slower than the stable ones passes",
            check=lambda check: check.max_ratio_to_stable is None or float(check.max_ratio_to_stable) >= 1,
            field="maxRatioToStable",
        ),
        ValidationRule(
            cel="!has(self.prometheus) || !has(self.minRequests)",
            message="the gateways count no requests for a query: leave minRequests out",
            check=lambda check: check.prometheus is None or check.min_requests is None,
            field="minRequests",
        ),
    )

    metric: Annotated[
        ReleaseMetric | None,
        Field(
            description="ErrorRate: the share of requests that fail for clients: every gRPC status but OK, "
            "every REST status from 400 on, timeouts and lost connections. "
            "LatencyP99: the time within which 99 of 100 requests are answered."
        ),
    ] = None
    prometheus: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=2_048,
            description="A PromQL query with one value, evaluated at the end of each interval; above max the check fails at once. "
            "No value, NaN and an unreachable Prometheus neither pass nor fail. "
            "Needs controllers.prometheusUrl in the chart's values.",
        ),
    ] = None
    max: Annotated[
        DecimalText | None,
        Field(
            description="Largest value that passes, as a decimal in quotes: '0.001' is one failure in 1,000 requests. "
            "If the stable targets fail as often, a value above max neither passes nor rolls back."
        ),
    ] = None
    max_ratio_to_stable: Annotated[
        DecimalText | None,
        Field(
            description="Largest ratio that passes, relative to the route's other targets at the same time: '1.10' is a tenth slower. "
            "Latencies are compared in whole milliseconds, above 100 ms with two digits."
        ),
    ] = None
    min_requests: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=1_000_000_000,
            description="Number of the target's requests in a step that the check needs to pass, however long that takes. "
            "Absent: 3 / max for ErrorRate, 300 for LatencyP99; "
            "that many requests without a failure show, with 95 % confidence, that the share is below the limit.",
        ),
    ] = None

    @property
    def title(self) -> str:
        """Return the short name of the check for the status and messages."""
        return self.metric.value if self.metric is not None else f"prometheus: {self.prometheus}"


def _is_ascending(steps: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(steps))


def _leaves_stable_requests(release: ReleaseSpec) -> bool:
    needs_stable_requests = any(check.metric is ReleaseMetric.LATENCY_P99 for check in release.checks)
    return not needs_stable_requests or release.steps[0] < _ALL_PERCENT


class ReleaseSpec(ApiModel):
    """Moves traffic to one target of a route in steps, checks it, and rolls back if a check fails.

    It changes the effective weights, shown in status.routes, and not the spec.
    """

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!self.checks.exists(check, has(check.metric) && check.metric == 'LatencyP99') || self.steps[0] < 100",
            message="LatencyP99 compares with the other targets, so the first step must leave them requests: "
            "begin below 100, as in [50, 100]",
            check=_leaves_stable_requests,
            field="steps",
        ),
    )

    route: Annotated[ObjectName, Field(description="Name of the route.")]
    target: Annotated[
        SharedName,
        Field(
            description="Inference to release; one of the route's targets, by the same name. "
            "The others share the rest by weight."
        ),
    ]
    steps: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1, le=100)], ...],
        Field(
            min_length=1,
            max_length=MAX_STEPS,
            description="The target's share of the route's requests at each step, in percent, ascending. "
            "After the last step it gets all requests.",
        ),
        ValidationRules(
            ValidationRule(
                cel="self.isSorted() && self.all(step, self.exists_one(other, other == step))",
                message="must ascend, as in [1, 5, 25, 50, 100]",
                check=_is_ascending,
            )
        ),
        ListAtomic(),
    ] = (1, 5, 25, 50, 100)
    interval: Annotated[
        Annotated[DurationText, duration_between("1s", "24h")],
        Field(
            description="Shortest duration of a step, from 1s to 24h. "
            "Checks run about ten times in it, and a failure takes effect at once."
        ),
    ] = "2m"
    checks: Annotated[
        tuple[ReleaseCheck, ...],
        Field(
            min_length=1,
            max_length=MAX_CHECKS,
            description="Checks that must all pass, with enough requests, before the next step; a failed one ends the release.",
        ),
        ValidationRules(
            ValidationRule(
                cel="self.all(check, self.exists_one(other, has(check.metric) ? has(other.metric) && other.metric == check.metric "
                ": has(other.prometheus) && other.prometheus == check.prometheus))",
                message="each metric and each query may be there once",
                check=lambda checks: len({check.title for check in checks}) == len(checks),
            )
        ),
        ListAtomic(),
    ]
    on_failure: Annotated[
        OnFailure,
        Field(
            description="Rollback: the target gets no requests until the spec is changed. "
            "Pause: the target keeps its share, and the release waits for a person."
        ),
    ] = OnFailure.ROLLBACK


class CheckStatus(StatusModel):
    """Result of a check at the end of the last interval."""

    check: Annotated[str, Field(max_length=2_100, description="Metric or query.")]
    verdict: Annotated[
        CheckVerdict,
        Field(
            description="Waiting: too few requests, or no measurement. Passing. "
            "Undecided: above the limit, but not significantly. Failed."
        ),
    ]
    message: Annotated[str, Field(max_length=1_024, description="Measured values.")] = ""
    bound_ms: Annotated[
        int | None,
        Field(ge=0, description="LatencyP99: limit derived from the stable targets, in milliseconds."),
    ] = None


class GatewayCounts(StatusModel):
    """Counters of one gateway at the start of the current interval."""

    gateway: Annotated[str, Field(max_length=253, description="Name of the gateway's pod.")]
    uptime: Annotated[
        int,
        Field(
            ge=0,
            description="Uptime of the gateway at that time, in seconds; a lower value later means a restart.",
        ),
    ] = 0
    target: Annotated[
        str, Field(max_length=MAX_COUNTS_LENGTH, description="Counters of the released target.")
    ] = ""
    stable: Annotated[
        str, Field(max_length=MAX_COUNTS_LENGTH, description="Counters of the other targets.")
    ] = ""


class ReleaseStatus(StatusModel):
    """State of the release, from which the controllers continue after a restart."""

    @field_validator("phase", mode="before")
    @classmethod
    def _end_unknown_phase(cls, value: object) -> object:
        # Another version wrote this phase: the safe reading is that the target gets no requests.
        return value if value in set(ReleasePhase) else ReleasePhase.ROLLED_BACK

    key: Annotated[
        str,
        Field(
            max_length=64,
            description="Identity of the release: hashes of spec.release and of the route's targets.",
        ),
    ]
    phase: Annotated[ReleasePhase, Field(description="Progressing, Paused, Promoted or RolledBack.")]
    step: Annotated[int, Field(ge=1, description="Number of the current step, from 1.")] = 1
    weight: Annotated[int, Field(ge=0, le=100, description="The target's effective share, in percent.")] = 0
    since: Annotated[datetime, Field(description="When the current step, or the final phase, started.")]
    reason: Annotated[str, Field(max_length=64, description="Reason in one CamelCase word.")] = ""
    message: Annotated[str, Field(max_length=4_096, description="Reason in a sentence.")] = ""
    command: Annotated[
        str, Field(max_length=256, description="Last observed value of the annotation tidegate.io/release.")
    ] = ""
    checks: Annotated[
        tuple[CheckStatus, ...],
        Field(max_length=MAX_CHECKS, description="Results of the checks."),
        ListMap("check"),
    ] = ()
    window: Annotated[
        int, Field(ge=1, description="Number of the current sample of requests; each step starts a new one.")
    ] = 1
    window_began: Annotated[datetime, Field(description="When the current sample started.")]
    checked: Annotated[datetime, Field(description="When the checks were last written here.")]
    target: Annotated[
        str,
        Field(max_length=MAX_COUNTS_LENGTH, description="The target's part of the sample so far, encoded."),
    ] = ""
    stable: Annotated[
        str, Field(max_length=MAX_COUNTS_LENGTH, description="The other targets' part of the sample.")
    ] = ""
    gateways: Annotated[
        tuple[GatewayCounts, ...],
        Field(max_length=MAX_GATEWAYS, description="Counters of the gateways at the start of the interval."),
        ListMap("gateway"),
    ] = ()
