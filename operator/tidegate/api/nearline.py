"""`spec.nearline` of an Inference: from which stream its work comes, and where the results go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import DurationText, ObjectName, between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.sample_log import HOST, PORT, NatsUrl, Subject
from tidegate.api.schema import ListSet, Rule, Rules, lacks, matches
from tidegate_dataplane.contract import Sasl

_NAME: Final = matches(r"[A-Za-z0-9_-]+", "must be letters, digits, dashes and underscores")

StreamName = Annotated[str, Field(min_length=1, max_length=128), Rules(_NAME)]
Topic = Annotated[
    str,
    Field(min_length=1, max_length=249),
    Rules(
        matches(r"[A-Za-z0-9._-]+", "must be letters, digits, dots, dashes and underscores"),
        lacks(r"^[.]{1,2}$", "must not be . or .."),
    ),
]
Server = Annotated[
    str,
    Field(min_length=1, max_length=300),
    Rules(
        matches(
            rf"{HOST}:{PORT}",
            "must be <host>:<port> with a port of 1 to 65535; credentials belong into the Secret of secretName",
        )
    ),
]
HeaderName = Annotated[str, Field(min_length=1, max_length=64), Rules(_NAME)]


class NatsStream(ApiModel):
    """A subject of a JetStream stream, read through one durable consumer that all replicas share."""

    url: Annotated[
        NatsUrl,
        Field(description="The server: nats://<host>:<port>, or tls:// for one that must be encrypted."),
    ]
    stream: Annotated[StreamName, Field(description="Name of the stream, which is yours.")]
    subject: Annotated[Subject, Field(description="The subject of the stream whose messages are taken.")]
    consumer: Annotated[
        StreamName | None,
        Field(
            description="Name of the durable pull consumer; made if there is none of the name. One that gives messages up "
            "by itself (max-deliver) is refused. Absent: tidegate_<namespace>_<name>."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: nats-token, or nats-username and nats-password; ca.crt, "
            "tls.crt and tls.key for TLS. No other key is read. Mounted in the model's pods. Absent: no credentials."
        ),
    ] = None


class KafkaTopic(ApiModel):
    """A topic of a Kafka cluster, whose partitions the replicas share as one consumer group."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.sasl) || has(self.secretName)",
            message="sasl needs a secretName, whose Secret has kafka-username and kafka-password",
            check=lambda kafka: kafka.sasl is None or kafka.secret_name is not None,
            field="sasl",
        ),
        Rule(
            cel="!has(self.sasl) || self.sasl != 'PLAIN' || self.tls",
            message="sasl PLAIN would send the password in the clear: set tls: true, or use SCRAM-SHA-512",
            check=lambda kafka: kafka.sasl is not Sasl.PLAIN or kafka.tls,
            field="sasl",
        ),
    )

    bootstrap_servers: Annotated[
        tuple[Server, ...],
        Field(
            min_length=1,
            max_length=16,
            description="Servers of the cluster, <host>:<port> each; one that answers is enough, and names the others.",
        ),
        ListSet(),
    ]
    topic: Annotated[
        Topic,
        Field(
            description="Name of the topic, which is yours. A replica beyond the number of its partitions gets no message."
        ),
    ]
    group: Annotated[
        Topic | None,
        Field(
            description="Name of the consumer group, which nobody else may use; it begins at the topic's first message. "
            "Absent: tidegate_<namespace>_<name>."
        ),
    ] = None
    tls: Annotated[
        bool,
        Field(strict=True, description="Whether connections are encrypted, and the servers' names checked."),
    ] = False
    sasl: Annotated[
        Sasl | None,
        Field(description="How the user of the Secret proves who it is. Absent: without a password."),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: kafka-username and kafka-password for sasl; ca.crt, tls.crt and "
            "tls.key for tls. No other key is read. Mounted in the model's pods. Absent: no credentials."
        ),
    ] = None


class Deadline(ApiModel):
    """Where a message says until when its answer is wanted: in RFC 3339 with a time zone, or in seconds since 1970."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.header) != has(self.field)",
            message="needs exactly one of header and field",
            check=lambda deadline: (deadline.header is None) != (deadline.field is None),
        ),
    )

    header: Annotated[HeaderName | None, Field(description="A header of the message.")] = None
    field: Annotated[HeaderName | None, Field(description="A field of the message's JSON object.")] = None


class Consume(ApiModel):
    """Where messages come from, and how many a pod holds."""

    RULES: ClassVar[tuple[Rule, ...]] = (exactly_one("nats", "kafka"),)

    nats: Annotated[NatsStream | None, Field(description=NatsStream.__doc__)] = None
    kafka: Annotated[KafkaTopic | None, Field(description=KafkaTopic.__doc__)] = None
    max_in_flight: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=256,
            description="Number of messages that one pod holds without having answered them, 1 to 256. Among them the "
            "earliest deadline is asked first; none is taken while the model is not ready.",
        ),
    ] = 32
    deadline: Annotated[
        Deadline | None,
        Field(
            description="Where a message has its deadline; one that is past before the model was asked is a dead letter. "
            "Absent: messages have none, and are asked in the stream's order."
        ),
    ] = None


class NatsBucket(ApiModel):
    """A key-value bucket of a NATS server: the key is the message's id, the value the result as JSON."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.secretName) || has(self.url)",
            message="secretName is only for a bucket with a url of its own; else the stream's secretName counts",
            check=lambda bucket: bucket.secret_name is None or bucket.url is not None,
            field="secretName",
        ),
    )

    url: Annotated[
        NatsUrl | None,
        Field(
            description="The server, nats://<host>:<port> or tls://; only with consume.kafka. Absent: that of consume.nats."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace for url, with the keys of consume.nats.secretName. Absent: no "
            "credentials."
        ),
    ] = None

    bucket: Annotated[StreamName, Field(description="Name of the bucket; made if there is none of the name.")]
    ttl: Annotated[
        Annotated[DurationText, between("1m", "720h")],
        Field(
            description="How long a result is kept, from 1m to 720h. As long, a message with an id that has a result is "
            "acknowledged without asking the model. A bucket that is there must have the same."
        ),
    ] = "24h"


class ResultStore(ApiModel):
    """Where results are kept."""

    nats: Annotated[NatsBucket, Field(description=NatsBucket.__doc__)]


class Produce(ApiModel):
    """What becomes of results: each is kept before its message is acknowledged."""

    store: Annotated[ResultStore, Field(description=ResultStore.__doc__)]


class DeadLetters(ApiModel):
    """What becomes of messages that cannot be answered: they are published again, with the reason in their headers."""

    RULES: ClassVar[tuple[Rule, ...]] = (exactly_one("subject", "topic"),)

    subject: Annotated[
        Subject | None,
        Field(description="With consume.nats: the subject, on the same server; a stream of yours takes it."),
    ] = None
    topic: Annotated[
        Topic | None, Field(description="With consume.kafka: the topic, of the same cluster, which is yours.")
    ] = None


class Nearline(ApiModel):
    """Work from a stream instead of requests: at least once, each id answered once, nothing lost while no pod runs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.deadLetters.subject) || !has(self.consume.nats) "
            "|| self.deadLetters.subject != self.consume.nats.subject",
            message="deadLetters.subject must be another than consume.nats.subject, or dead letters would be consumed",
            check=lambda nearline: (
                nearline.consume.nats is None
                or nearline.dead_letters.subject != nearline.consume.nats.subject
            ),
            field="deadLetters",
        ),
        Rule(
            cel="!has(self.deadLetters.topic) || !has(self.consume.kafka) "
            "|| self.deadLetters.topic != self.consume.kafka.topic",
            message="deadLetters.topic must be another than consume.kafka.topic, or dead letters would be consumed",
            check=lambda nearline: (
                nearline.consume.kafka is None or nearline.dead_letters.topic != nearline.consume.kafka.topic
            ),
            field="deadLetters",
        ),
        Rule(
            cel="has(self.consume.kafka) == has(self.deadLetters.topic)",
            message="deadLetters goes to the stream's own broker: give subject with consume.nats, topic with consume.kafka",
            check=lambda nearline: (nearline.consume.kafka is None) == (nearline.dead_letters.topic is None),
            field="deadLetters",
        ),
        Rule(
            cel="has(self.consume.kafka) == has(self.produce.store.nats.url)",
            message="produce.store.nats.url is the bucket's server with consume.kafka; with consume.nats it is the stream's",
            check=lambda nearline: (
                (nearline.consume.kafka is None) == (nearline.produce.store.nats.url is None)
            ),
            field="produce",
        ),
    )

    consume: Annotated[Consume, Field(description=Consume.__doc__)]
    produce: Annotated[Produce, Field(description=Produce.__doc__)]
    dead_letters: Annotated[DeadLetters, Field(description=DeadLetters.__doc__)]
    max_deliveries: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="How often a message that the model refuses is tried, 1 to 100, with growing pauses from 1s to "
            "30s, before it is a dead letter.",
        ),
    ] = 5
