"""Streams of events as sources of a FeatureCompute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.brokers import BrokerSubject, BrokerTopic, DeadLetters, MessageFieldName
from tidegate.api.durations import parse_duration
from tidegate.api.fields import DurationText, Identifier, duration_between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListMap, ListSet, ValidationRule
from tidegate_dataplane.contract import EventFieldType, RefusalReason

MAX_EVENTS: Final = 4096
_MAX_FIELDS: Final = 32
MAX_FIELD_NUMBER: Final = 2**29 - 1
"""The largest number of a field in Protobuf."""


class StreamField(ApiModel):
    """A field of every event."""

    name: Annotated[Identifier, Field(description="Name of the field, like item_id.")]
    type: Annotated[
        EventFieldType,
        Field(description="Type of the field: int64, float64 or string. Of a string only a hash is stored."),
    ]


class ProtobufEncoding(ApiModel):
    """Events are Protobuf messages, whose other fields are skipped."""

    numbers: Annotated[
        Mapping[
            Annotated[str, Field(max_length=64)],
            Annotated[int, Field(strict=True, ge=1, le=MAX_FIELD_NUMBER)],
        ],
        Field(
            min_length=1,
            max_length=_MAX_FIELDS + 2,
            description="Number in the message of the entity's key, of the event's time and of each field. An int64 may be "
            "int32, int64, uint32, uint64, bool or an enum there, a float64 is a double. A field that the message does not "
            "contain is 0 or empty, as in proto3.",
        ),
    ]


class EventDeadLetters(DeadLetters):
    """Where refused events go, on the stream's own broker: they are published with the reason in their headers."""

    reasons: Annotated[
        tuple[RefusalReason, ...],
        Field(
            min_length=1,
            max_length=len(RefusalReason),
            description=f"Reasons for which a refused event is published: {', '.join(RefusalReason)}. Absent: all but TooLate.",
        ),
        ListSet(),
    ] = tuple(reason for reason in RefusalReason if reason is not RefusalReason.TOO_LATE)


class SourceStream(ApiModel):
    """A stream of events with the entity's key: JSON or Protobuf. Every replica reads it; with store.redis, one ingester."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        exactly_one("nats", "kafka"),
        ValidationRule(
            cel="duration(self.lateness) <= duration(self.ttl)",
            message="lateness must not be longer than ttl",
            check=lambda stream: parse_duration(stream.lateness) <= parse_duration(stream.ttl),
            field="lateness",
        ),
        ValidationRule(
            cel="!has(self.deadLetters) || has(self.kafka) == has(self.deadLetters.topic)",
            message="deadLetters goes to the stream's own broker: give subject with nats, topic with kafka",
            check=lambda stream: (
                stream.dead_letters is None or (stream.kafka is None) == (stream.dead_letters.topic is None)
            ),
            field="deadLetters",
        ),
        ValidationRule(
            cel="!has(self.deadLetters) || !(has(self.nats) && has(self.deadLetters.subject) "
            "&& self.deadLetters.subject == self.nats.subject || has(self.kafka) && has(self.deadLetters.topic) "
            "&& self.deadLetters.topic == self.kafka.topic)",
            message="deadLetters must be another subject or topic than the stream's, or dead letters would be read as events",
            check=lambda stream: not stream.reads_dead_letters,
            field="deadLetters",
        ),
    )

    nats: Annotated[BrokerSubject | None, Field(description=BrokerSubject.__doc__)] = None
    kafka: Annotated[BrokerTopic | None, Field(description=BrokerTopic.__doc__)] = None
    event_time: Annotated[
        MessageFieldName,
        Field(
            description="Field with the time of the event: RFC 3339 with a time zone, or milliseconds since 1970, in Protobuf "
            "as int64. At most a minute after the broker got the event."
        ),
    ]
    protobuf: Annotated[ProtobufEncoding | None, Field(description=ProtobufEncoding.__doc__)] = None
    fields: Annotated[
        tuple[StreamField, ...],
        Field(
            max_length=_MAX_FIELDS,
            description="Fields for features to read, beside the key; an event without one of them is refused.",
        ),
        ListMap("name"),
    ] = ()
    lateness: Annotated[
        Annotated[DurationText, duration_between("0s", "168h")],
        Field(
            description="How much older than the newest event of its partition an event may be, from 0s to 168h; an older "
            "one is refused."
        ),
    ] = "1m"
    ttl: Annotated[
        Annotated[DurationText, duration_between("1s", "8760h")],
        Field(
            description="How long after its time an event is stored, from 1s to 8760h. The broker must keep events as long, "
            "because a new pod reads them again; with store.redis the ingester of a new plan does."
        ),
    ] = "168h"
    max_events: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_EVENTS,
            description=f"Number of newest events that are stored for each key, 1 to {MAX_EVENTS}: no feature sees more, and "
            "it bounds the storage and memory for a key.",
        ),
    ] = 256

    dead_letters: Annotated[
        EventDeadLetters | None,
        Field(
            description="Where refused events go, with the reason in their headers. Absent: they are counted, and remain in the "
            "stream alone."
        ),
    ] = None

    @property
    def reads_dead_letters(self) -> bool:
        """Return whether the dead letters go to the subject or topic that is read."""
        if self.dead_letters is None:
            return False
        source = (
            self.nats.subject if self.nats is not None else self.kafka.topic if self.kafka is not None else ""
        )
        return self.dead_letters.target_name == source

    @property
    def broker_address(self) -> str:
        """Return the subject or the topic, and its broker."""
        if self.kafka is not None:
            return f"topic {self.kafka.topic} at {','.join(self.kafka.bootstrap_servers)}"
        return f"subject {self.nats.subject} at {self.nats.url}" if self.nats is not None else ""
