"""From which stream a pod takes its work, and how that goes."""

from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel


class StreamProblem(StrEnum):
    """Why a pod takes nothing from its stream."""

    STREAM_UNREACHABLE = "StreamUnreachable"
    STREAM_REFUSED = "StreamRefused"


class Sasl(StrEnum):
    """How a user of Kafka proves who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class KafkaOrder(ContractModel):
    """The topic to consume as one of a group; `secret` names the Secret that is mounted for it, empty for none."""

    servers: tuple[str, ...] = Field(min_length=1, description="host:port, of which one has to answer")
    topic: str
    group: str
    secret: str = ""
    tls: bool = False
    sasl: Sasl | None = None


class StreamOrder(ContractModel):
    """The stream to consume, the bucket for results and the place for what cannot be answered.

    All are of the NATS server at `url`, unless `kafka` has the stream and the dead letters: then `url` has the bucket alone.
    `secret` names the Secret that is mounted for `url`; empty connects without credentials.
    A message's deadline is in `deadline_header` or `deadline_field`; both empty: messages have none.
    """

    url: str
    secret: str = ""
    stream: str = ""
    subject: str = ""
    consumer: str = ""
    kafka: KafkaOrder | None = Field(default=None, exclude_if=lambda kafka: kafka is None)
    max_in_flight: int = Field(ge=1, description="messages that the pod holds without having settled them")
    deadline_header: str = ""
    deadline_field: str = ""
    bucket: str
    ttl_s: float = Field(gt=0, description="how long the bucket keeps a result")
    dead_letters: str = Field(description="subject or topic of what cannot be answered")
    max_deliveries: int = Field(ge=1)


class StreamCount(ContractModel):
    """What the broker counts for all pods of an Inference together; every pod reports the same."""

    unsettled: int = Field(ge=0, description="messages to be dealt with, those that a pod holds included")
    arrived: int = Field(
        ge=0, description="messages so far: of NATS each delivery of one counts, of Kafka each message once"
    )
    age_s: float = Field(ge=0, description="how long ago the broker said so")


class StreamReport(ContractModel):
    """Whether the pod consumes its stream, or why not, in words for the object's status."""

    problem: StreamProblem | None = None
    message: str = ""
    count: StreamCount | None = Field(default=None, exclude_if=lambda count: count is None)
