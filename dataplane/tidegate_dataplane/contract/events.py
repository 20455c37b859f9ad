"""Streams of events that a FeatureCompute reads, and what a pod reports about them."""

from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.nearline import KafkaOrder, StreamProblem


class EventFieldType(StrEnum):
    """The type of a field of an event; of a string only its hash is stored."""

    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"


class EventField(ContractModel):
    """A field that every event of the stream has."""

    name: str
    type: EventFieldType


class NatsEvents(ContractModel):
    """A subject of a JetStream stream; `secret` names the Secret mounted for it, empty for none."""

    url: str
    stream: str
    subject: str
    secret: str = ""


class EventStream(ContractModel):
    """A stream of events, each of one key of `entity`: exactly one of `nats` and `kafka` has it.

    They are JSON objects, or with `protobuf_numbers` Protobuf messages: the number of the key, of the time and of each field.

    A pod stores for each key its newest `max_events` events by event time that are younger than `ttl_ms`. An event that is
    more than `lateness_ms` older than the newest one of its partition is refused.
    """

    name: str
    entity: str
    nats: NatsEvents | None = Field(default=None, exclude_if=lambda nats: nats is None)
    kafka: KafkaOrder | None = Field(default=None, exclude_if=lambda kafka: kafka is None)
    event_time: str = Field(description="field with the event's time: RFC 3339, or milliseconds since 1970")
    fields: tuple[EventField, ...]
    lateness_ms: int = Field(ge=0)
    ttl_ms: int = Field(ge=1)
    max_events: int = Field(ge=1)
    protobuf_numbers: dict[str, int] | None = Field(default=None, exclude_if=lambda numbers: numbers is None)

    @property
    def secret_name(self) -> str:
        """Return the name of the Secret of the broker; empty for none."""
        broker = self.nats or self.kafka
        return broker.secret if broker is not None else ""


class RedisStore(ContractModel):
    """A Redis that stores the events of a plan, for all of its pods; without one each pod stores them.

    `secret` names the Secret mounted for it, empty for none. Keys begin with `key_prefix` and the plan's hash.
    """

    address: str = Field(description="<host>:<port>")
    secret: str = ""
    tls: bool = False
    key_prefix: str
    timeout_ms: int = Field(ge=1, description="how long a request waits for the events of its keys")


class RefusalReason(StrEnum):
    """Why an event is not stored."""

    MALFORMED = "Malformed"
    MISSING_FIELD = "MissingField"
    WRONG_TYPE = "WrongType"
    TOO_LATE = "TooLate"
    EXPIRED = "Expired"
    IN_THE_FUTURE = "InTheFuture"


class EventDeadLetters(ContractModel):
    """Where the refused events of one source go, on the source's own broker, and for which reasons an event does."""

    source: str
    target: str = Field(description="subject or topic")
    reasons: tuple[RefusalReason, ...]


class RefusedEvent(ContractModel):
    """An event that was not stored; the broker still has it, at `position` of `partition`."""

    partition: str
    position: int
    reason: RefusalReason
    message: str


class DeadLetterCounts(ContractModel):
    """Refused events that were written as dead letters, and those that were not, since the target took none."""

    written: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)


class DeadLetterReport(DeadLetterCounts):
    """What became of the dead letters of one source, and why none is written now, for `failing_s`."""

    failing_s: float = Field(default=0.0, ge=0)
    message: str = ""


class EventStreamReport(ContractModel):
    """How current a pod's events of one source are, or why they are not."""

    source: str
    caught_up: bool
    lag_s: float = Field(ge=0, description="how long ago the pod had everything that was in the stream")
    pending: int | None = None
    stored: int = Field(default=0, ge=0)
    refused: dict[RefusalReason, int] = Field(default_factory=dict)
    last_refused: RefusedEvent | None = None
    dead_letters: DeadLetterReport | None = Field(default=None, exclude_if=lambda letters: letters is None)
    problem: StreamProblem | None = None
    failing_s: float = Field(default=0.0, ge=0, description="for how long the stream could not be read")
    message: str = ""
