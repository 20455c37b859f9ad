"""How a ModelAccess lets a new target in: step by step, judged at each, and taken back without a person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator

from tidegate.api.fields import DecimalText, DurationText, ObjectName, between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.schema import ListAtomic, ListMap, Rule, Rules

_ALL: Final = 100
MAX_STEPS: Final = 20
MAX_CHECKS: Final = 8
MAX_GATEWAYS: Final = 256
MAX_COUNTS: Final = 8_192
RELEASE_ANNOTATION: Final = "tidegate.io/release"


class Metric(StrEnum):
    """What the gateways measure of every request."""

    ERROR_RATE = "ErrorRate"
    LATENCY_P99 = "LatencyP99"


class OnFailure(StrEnum):
    """What a failed check does."""

    ROLLBACK = "Rollback"
    PAUSE = "Pause"


class ReleasePhase(StrEnum):
    """How far a release is."""

    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"


class ReleaseCommand(StrEnum):
    """What the annotation tidegate.io/release may say."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"
    RESTART = "restart"


class CheckVerdict(StrEnum):
    """What a check says of the target."""

    WAITING = "Waiting"
    PASSING = "Passing"
    UNDECIDED = "Undecided"
    FAILED = "Failed"


def _between_zero_and_one(check: ReleaseCheck) -> bool:
    return check.metric is not Metric.ERROR_RATE or (check.max is not None and 0 < float(check.max) < 1)


class ReleaseCheck(ApiModel):
    """One condition that the target must keep: exactly one of metric and prometheus."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        exactly_one("metric", "prometheus"),
        Rule(
            cel="has(self.metric) && self.metric == 'LatencyP99' "
            "? has(self.maxRatioToStable) && !has(self.max) : has(self.max) && !has(self.maxRatioToStable)",
            message="LatencyP99 takes maxRatioToStable and nothing else; ErrorRate and prometheus take max",
            check=lambda check: (
                (check.max is None) is (check.metric is Metric.LATENCY_P99)
                and (check.max_ratio_to_stable is not None) is (check.metric is Metric.LATENCY_P99)
            ),
        ),
        Rule(
            cel="!has(self.metric) || self.metric != 'ErrorRate' || !has(self.max) "
            "|| (double(self.max) > 0.0 && double(self.max) < 1.0)",
            message="the max of ErrorRate is a share of all requests: above 0 and below 1, like '0.001'",
            check=_between_zero_and_one,
            field="max",
        ),
        Rule(
            cel="!has(self.maxRatioToStable) || double(self.maxRatioToStable) >= 1.0",
            message="must be at least 1: a target no slower than the stable ones passes",
            check=lambda check: check.max_ratio_to_stable is None or float(check.max_ratio_to_stable) >= 1,
            field="maxRatioToStable",
        ),
        Rule(
            cel="!has(self.prometheus) || !has(self.minRequests)",
            message="the gateways count no requests for a query: leave minRequests out",
            check=lambda check: check.prometheus is None or check.min_requests is None,
            field="minRequests",
        ),
    )

    metric: Annotated[
        Metric | None,
        Field(
            description="ErrorRate: the share of its requests that fail, as clients see it: every gRPC status but OK, "
            "every REST answer from 400 on, timeouts and lost connections. "
            "LatencyP99: the time within which 99 of 100 requests are answered."
        ),
    ] = None
    prometheus: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=2_048,
            description="A PromQL query with one value, asked at the end of each interval; above max it fails at once. "
            "No value, NaN and a silent Prometheus neither pass nor fail. "
            "Needs controllers.prometheusUrl in the chart's values.",
        ),
    ] = None
    max: Annotated[
        DecimalText | None,
        Field(
            description="Most that passes, as a decimal in quotes: '0.001' is one failure in 1,000 requests. "
            "A failure that the stable targets have as often rolls nothing back, and lets nothing pass above max."
        ),
    ] = None
    max_ratio_to_stable: Annotated[
        DecimalText | None,
        Field(
            description="Most that passes, relative to the route's other targets at the same time: '1.10' is a tenth slower. "
            "Times are compared in whole milliseconds, above 100 ms in two digits."
        ),
    ] = None
    min_requests: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=1_000_000_000,
            description="Number of the target's requests in a step without which the check does not pass, however long it takes. "
            "Absent: 3 / max for ErrorRate, 300 for LatencyP99; "
            "so many requests without a failure show, in 95 of 100 cases, that the share is below the limit.",
        ),
    ] = None

    @property
    def title(self) -> str:
        """The check in a few words: what names it in the status and in messages."""
        return self.metric.value if self.metric is not None else f"prometheus: {self.prometheus}"


def _ascending(steps: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(steps))


def _leaves_something_to_compare(release: Release) -> bool:
    compares = any(check.metric is Metric.LATENCY_P99 for check in release.checks)
    return not compares or release.steps[0] < _ALL


class Release(ApiModel):
    """Lets one target of a route take more and more of its requests, judges it, and takes it out again when it fails.

    It moves the weights in effect, shown in status.routes; the spec stays as it is.
    """

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.checks.exists(check, has(check.metric) && check.metric == 'LatencyP99') || self.steps[0] < 100",
            message="LatencyP99 compares with the other targets, so the first step must leave them requests: "
            "begin below 100, as in [50, 100]",
            check=_leaves_something_to_compare,
            field="steps",
        ),
    )

    route: Annotated[ObjectName, Field(description="Name of the route.")]
    target: Annotated[
        ObjectName,
        Field(
            description="The Inference to release; one of the route's targets. "
            "The others share the rest by their weights."
        ),
    ]
    steps: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1, le=100)], ...],
        Field(
            min_length=1,
            max_length=MAX_STEPS,
            description="Its share of the route's requests at each step, in percent, ascending. "
            "When the last one has passed, it takes all of them.",
        ),
        Rules(
            Rule(
                cel="self.isSorted() && self.all(step, self.exists_one(other, other == step))",
                message="must ascend, as in [1, 5, 25, 50, 100]",
                check=_ascending,
            )
        ),
        ListAtomic(),
    ] = (1, 5, 25, 50, 100)
    interval: Annotated[
        Annotated[DurationText, between("1s", "24h")],
        Field(
            description="Shortest time that a step takes, as a duration from 1s to 24h. "
            "It is judged about ten times in it, and taken back at once when it fails."
        ),
    ] = "2m"
    checks: Annotated[
        tuple[ReleaseCheck, ...],
        Field(
            min_length=1,
            max_length=MAX_CHECKS,
            description="All must pass, with enough requests, before the next step; one that fails ends the release.",
        ),
        Rules(
            Rule(
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
            description="Rollback: the target gets no requests any more, until the spec is changed. "
            "Pause: it keeps its share and waits for a person."
        ),
    ] = OnFailure.ROLLBACK


class CheckStatus(StatusModel):
    """What a check said when it was last looked at, at the end of an interval."""

    check: Annotated[str, Field(max_length=2_100, description="The metric or the query.")]
    verdict: Annotated[
        CheckVerdict,
        Field(
            description="Waiting: too few requests, or nothing measured. Passing. "
            "Undecided: above the limit, but that may still be chance. Failed."
        ),
    ]
    message: Annotated[str, Field(max_length=1_024, description="The figures.")] = ""
    bound_ms: Annotated[
        int | None, Field(ge=0, description="LatencyP99: what the stable targets allow, in milliseconds.")
    ] = None


class GatewayCounts(StatusModel):
    """What one gateway had counted when the present interval began."""

    gateway: Annotated[str, Field(max_length=253, description="Name of the gateway's pod.")]
    uptime: Annotated[
        int,
        Field(ge=0, description="How long it had run then, in seconds; less later means that it restarted."),
    ] = 0
    target: Annotated[str, Field(max_length=MAX_COUNTS, description="Of the released target.")] = ""
    stable: Annotated[str, Field(max_length=MAX_COUNTS, description="Of the other targets.")] = ""


class ReleaseStatus(StatusModel):
    """The release as it is now; all that it goes on from after a restart."""

    @field_validator("phase", mode="before")
    @classmethod
    def _unknown_is_ended(cls, value: object) -> object:
        """A phase of another version: the target gets nothing, and nothing begins by itself."""
        return value if value in set(ReleasePhase) else ReleasePhase.ROLLED_BACK

    key: Annotated[
        str,
        Field(
            max_length=64,
            description="Which release this is about: hashes over spec.release and the route's targets.",
        ),
    ]
    phase: Annotated[ReleasePhase, Field(description="Progressing, Paused, Promoted or RolledBack.")]
    step: Annotated[int, Field(ge=1, description="Number of the present step, from 1.")] = 1
    weight: Annotated[int, Field(ge=0, le=100, description="The target's share in effect, in percent.")] = 0
    since: Annotated[datetime, Field(description="When the present step, or the end, began.")]
    reason: Annotated[str, Field(max_length=64, description="Why, in one word.")] = ""
    message: Annotated[str, Field(max_length=4_096, description="Why, in a sentence.")] = ""
    command: Annotated[
        str, Field(max_length=256, description="What the annotation tidegate.io/release said when last seen.")
    ] = ""
    checks: Annotated[
        tuple[CheckStatus, ...], Field(max_length=MAX_CHECKS, description="The checks."), ListMap("check")
    ] = ()
    window: Annotated[
        int, Field(ge=1, description="Number of the sample that is judged now; each step begins another.")
    ] = 1
    window_began: Annotated[datetime, Field(description="When that sample began.")]
    checked: Annotated[datetime, Field(description="When the checks were last written here.")]
    target: Annotated[
        str, Field(max_length=MAX_COUNTS, description="The target's part of the sample so far, in short.")
    ] = ""
    stable: Annotated[str, Field(max_length=MAX_COUNTS, description="The other targets' part of it.")] = ""
    gateways: Annotated[
        tuple[GatewayCounts, ...],
        Field(max_length=MAX_GATEWAYS, description="Where the gateways' counters stood."),
        ListMap("gateway"),
    ] = ()
