"""Events of a ComputePool: times at which people expect a multiple of the demand, such as a sale."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.fields import DecimalText, DurationText, ObjectName, TimeText, duration_between
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.api.schema import ListAtomic, ValidationRule, ValidationRules, must_match

# More than 1 and at most 100.
_FACTOR_PATTERN = r"0*(1[.][0-9]*[1-9][0-9]*|[2-9]([.][0-9]+)?|[1-9][0-9]([.][0-9]+)?|100([.]0+)?)"


class InferenceName(ApiModel):
    """An Inference by namespace and name."""

    namespace: Annotated[ObjectName, Field(description="The Inference's namespace.")]
    name: Annotated[ObjectName, Field(description="The Inference's name.")]

    @property
    def object_key(self) -> ObjectKey:
        """Return the namespace and name."""
        return ObjectKey(self.namespace, self.name)


class DemandEvent(ApiModel):
    """A time at which a multiple of the demand is expected, once or repeatedly."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.schedule) != has(self.at)",
            message="set exactly one of schedule and at",
            check=lambda event: (event.schedule is None) != (event.starts_at is None),
        ),
    )

    name: Annotated[ObjectName, Field(description="Name of the event in messages, like sale-20h.")]
    starts_at: Annotated[
        TimeText | None,
        Field(
            alias="at", description="Start of an event that comes once, in UTC, like '2026-11-27T20:00:00Z'."
        ),
    ] = None
    schedule: Annotated[
        str | None,
        Field(
            min_length=9,
            max_length=128,
            description="Start of an event that recurs, as a cron schedule: minute, hour, day of the month, month, day of the week.",
        ),
    ] = None
    time_zone: Annotated[
        str, Field(min_length=1, max_length=64, description="Time zone of the schedule, like Europe/Berlin.")
    ] = "UTC"
    duration: Annotated[
        Annotated[DurationText, duration_between("1m", "168h")],
        Field(description="Length of the event, from 1m to 168h."),
    ]
    factor: Annotated[
        DecimalText,
        ValidationRules(must_match(_FACTOR_PATTERN, "must be more than 1 and at most 100, like '3'")),
        Field(
            description="How many times the demand before the event is expected, more than 1 and at most 100: a decimal in "
            "quotes. Of several events at a time the largest factor counts."
        ),
    ]
    inferences: Annotated[
        tuple[InferenceName, ...],
        Field(
            max_length=64,
            description="Inferences whose demand the event changes. Absent: every real-time Inference of the pool with spec.scaling.",
        ),
        ListAtomic(),
    ] = ()

    def concerns_inference(self, key: ObjectKey) -> bool:
        """Return whether the event changes the demand for an Inference of its pool."""
        return not self.inferences or any(inference.object_key == key for inference in self.inferences)
