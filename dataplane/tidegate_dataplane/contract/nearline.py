"""The order to consume a stream, and the report of a pod that does."""

from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.pipeline import ModelCall


class StreamProblem(StrEnum):
    """Why a pod consumes nothing from its stream."""

    STREAM_UNREACHABLE = "StreamUnreachable"
    STREAM_REFUSED = "StreamRefused"
    FEATURES_UNAVAILABLE = "FeaturesUnavailable"


class SaslMechanism(StrEnum):
    """The SASL mechanism with which a client of Kafka authenticates."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class KafkaOrder(ContractModel):
    """The topic to consume, as a member of a group if it is named; `secret` names the Secret mounted for it, empty for none."""

    servers: tuple[str, ...] = Field(
        min_length=1, description="host:port of the servers; one answer is enough"
    )
    topic: str
    group: str = ""
    secret: str = ""
    tls: bool = False
    sasl: SaslMechanism | None = None


class StreamFeatures(ContractModel):
    """How a pod gets the features of a message: by one call through the gateways at `gateway`, host:port.

    The inputs of the call come from the message. Of its outputs, the model gets those that have the name of one of its inputs.
    The result gets the optional ones if the model takes one of `marked_outputs`.
    """

    gateway: str
    call: ModelCall
    marked_outputs: tuple[str, ...] = Field(
        default=(),
        exclude_if=lambda outputs: not outputs,
        description="outputs that may lack the newest events of a stream",
    )
    revision: str = Field(
        min_length=1, description="changes with any of these fields or the plan; the report has it"
    )


class StreamOrder(ContractModel):
    """The stream to consume, the bucket for results and the subject or topic for dead letters.

    All are on the NATS server at `url`, unless `kafka` has the stream and the dead letters: then only the bucket is.
    `secret` names the Secret that is mounted for `url`; if empty, the agent connects without credentials.
    A message's deadline is in `deadline_header` or `deadline_field`; if both are empty, messages have none.
    With `features`, the model gets features beside the tensors of the message.
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
    features: StreamFeatures | None = Field(default=None, exclude_if=lambda features: features is None)


class StreamCount(ContractModel):
    """The broker's counts for all pods of an Inference together; every pod reports the same ones."""

    unsettled: int = Field(ge=0, description="messages to be dealt with, those that a pod holds included")
    arrived: int = Field(
        ge=0, description="messages so far: of NATS each delivery of one counts, of Kafka each message once"
    )
    age_s: float = Field(ge=0, description="how long ago the broker said so")


class StreamReport(ContractModel):
    """Whether the pod consumes its stream, or why not; the message is for the object's status."""

    problem: StreamProblem | None = None
    message: str = ""
    count: StreamCount | None = Field(default=None, exclude_if=lambda count: count is None)
