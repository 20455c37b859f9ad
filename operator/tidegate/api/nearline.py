"""`spec.nearline` of an Inference: the stream that it consumes, and where the results go."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.brokers import (
    BrokerSubject,
    BrokerTopic,
    DeadLetters,
    MessageFieldName,
    StreamName,
    TopicName,
)
from tidegate.api.fields import DurationText, ObjectName, SharedName, duration_between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.sample_log import NatsUrl
from tidegate.api.schema import ValidationRule


class NatsStream(BrokerSubject):
    """A subject of a JetStream stream, consumed by all replicas through one durable consumer."""

    consumer: Annotated[
        StreamName | None,
        Field(
            description="Name of the durable pull consumer; created if it does not exist. A consumer that drops messages "
            "by itself (max-deliver) is rejected. Absent: tidegate_<namespace>_<name>."
        ),
    ] = None


class KafkaTopic(BrokerTopic):
    """A topic of a Kafka cluster, consumed by all replicas as one consumer group; each partition goes to one replica."""

    group: Annotated[
        TopicName | None,
        Field(
            description="Name of the consumer group, which no other consumer may use; it starts at the topic's first message. "
            "Absent: tidegate_<namespace>_<name>."
        ),
    ] = None


class MessageDeadline(ApiModel):
    """Where a message has its deadline: in RFC 3339 with a time zone, or in seconds since 1970."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.header) != has(self.field)",
            message="needs exactly one of header and field",
            check=lambda deadline: (deadline.header is None) != (deadline.field is None),
        ),
    )

    header: Annotated[MessageFieldName | None, Field(description="Header of the message.")] = None
    field: Annotated[MessageFieldName | None, Field(description="Field of the message's JSON object.")] = None


class ConsumeSpec(ApiModel):
    """The stream of messages, and how many a pod processes at once."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("nats", "kafka"),)

    nats: Annotated[NatsStream | None, Field(description=NatsStream.__doc__)] = None
    kafka: Annotated[KafkaTopic | None, Field(description=KafkaTopic.__doc__)] = None
    max_in_flight: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=256,
            description="Number of messages that one pod has in flight, 1 to 256. Among them the "
            "earliest deadline comes first; a pod takes none while its model is not ready.",
        ),
    ] = 32
    deadline: Annotated[
        MessageDeadline | None,
        Field(
            description="Where a message has its deadline; a message whose deadline passes before its execution is a dead "
            "letter. Absent: no deadlines, and messages are processed in the order of the stream."
        ),
    ] = None


class NatsBucket(ApiModel):
    """A key-value bucket of a NATS server: keys are message ids, values are results as JSON."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.secretName) || has(self.url)",
            message="secretName is only for a bucket with a url of its own; else the stream's secretName counts",
            check=lambda bucket: bucket.secret_name is None or bucket.url is not None,
            field="secretName",
        ),
    )

    url: Annotated[
        NatsUrl | None,
        Field(
            description="Server, nats://<host>:<port> or tls://; only with consume.kafka. Absent: the server of consume.nats."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace for url, with the keys of consume.nats.secretName. Absent: no "
            "credentials."
        ),
    ] = None

    bucket: Annotated[StreamName, Field(description="Name of the bucket; created if it does not exist.")]
    ttl: Annotated[
        Annotated[DurationText, duration_between("1m", "720h")],
        Field(
            description="How long a result is kept, from 1m to 720h. Until then, another message with the same id is "
            "acknowledged without an execution. An existing bucket must have the same ttl."
        ),
    ] = "24h"


class ResultStore(ApiModel):
    """Store of the results."""

    nats: Annotated[NatsBucket, Field(description=NatsBucket.__doc__)]


class ProduceSpec(ApiModel):
    """Where results go: each is stored before its message is acknowledged."""

    store: Annotated[ResultStore, Field(description=ResultStore.__doc__)]


class NearlineSpec(ApiModel):
    """Consumes a stream instead of requests: at least once, one result per id, no loss while no pod runs."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.deadLetters.subject) || !has(self.consume.nats) "
            "|| self.deadLetters.subject != self.consume.nats.subject",
            message="deadLetters.subject must be another than consume.nats.subject, or dead letters would be consumed",
            check=lambda nearline: (
                nearline.consume.nats is None
                or nearline.dead_letters.subject != nearline.consume.nats.subject
            ),
            field="deadLetters",
        ),
        ValidationRule(
            cel="!has(self.deadLetters.topic) || !has(self.consume.kafka) "
            "|| self.deadLetters.topic != self.consume.kafka.topic",
            message="deadLetters.topic must be another than consume.kafka.topic, or dead letters would be consumed",
            check=lambda nearline: (
                nearline.consume.kafka is None or nearline.dead_letters.topic != nearline.consume.kafka.topic
            ),
            field="deadLetters",
        ),
        ValidationRule(
            cel="has(self.consume.kafka) == has(self.deadLetters.topic)",
            message="deadLetters goes to the stream's own broker: give subject with consume.nats, topic with consume.kafka",
            check=lambda nearline: (nearline.consume.kafka is None) == (nearline.dead_letters.topic is None),
            field="deadLetters",
        ),
        ValidationRule(
            cel="has(self.consume.kafka) == has(self.produce.store.nats.url)",
            message="produce.store.nats.url is the bucket's server with consume.kafka; with consume.nats it is the stream's",
            check=lambda nearline: (
                (nearline.consume.kafka is None) == (nearline.produce.store.nats.url is None)
            ),
            field="produce",
        ),
    )

    consume: Annotated[ConsumeSpec, Field(description=ConsumeSpec.__doc__)]
    produce: Annotated[ProduceSpec, Field(description=ProduceSpec.__doc__)]
    features: Annotated[
        SharedName | None,
        Field(
            description="Name of a FeatureCompute in the same namespace that is called for each message: messages then have its "
            "keys, and inputs of the model with the name of a feature get that feature. Or <namespace>/<name> of one in another "
            "namespace whose annotation tidegate.io/shared-with lists this namespace. Absent: messages have all inputs."
        ),
    ] = None
    dead_letters: Annotated[DeadLetters, Field(description=DeadLetters.__doc__)]
    max_deliveries: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="Attempts for a message that the model rejects, 1 to 100, with growing pauses from 1s to "
            "30s; after them it is a dead letter.",
        ),
    ] = 5
    max_delay: Annotated[
        Annotated[DurationText, duration_between("10s", "24h")] | None,
        Field(
            description="How long a message may wait, from 10s to 24h. With spec.scaling in a ComputePool, the allocator starts the "
            "replicas that this takes, after the SLOs of real-time Inferences and before all work that is only worth more; one "
            "replica stays, to count the messages. Absent: the backlog counts by its value."
        ),
    ] = None


def describe_stream(consume: ConsumeSpec) -> str:
    """Return the stream or topic with its servers, for messages."""
    if consume.kafka is not None:
        return f"topic {consume.kafka.topic} at {','.join(consume.kafka.bootstrap_servers)}"
    return f"stream {consume.nats.stream} at {consume.nats.url}" if consume.nats is not None else "no stream"
