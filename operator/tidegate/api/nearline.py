"""`spec.nearline` of an Inference: from which stream its work comes, and where the results go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import DurationText, ObjectName, between
from tidegate.api.meta import ApiModel
from tidegate.api.sample_log import NatsUrl, Subject
from tidegate.api.schema import Rule, Rules, matches

_NAME: Final = matches(r"[A-Za-z0-9_-]+", "must be letters, digits, dashes and underscores")

StreamName = Annotated[str, Field(min_length=1, max_length=128), Rules(_NAME)]
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


class Deadline(ApiModel):
    """Where a message says until when its answer is wanted: in RFC 3339 with a time zone, or in seconds since 1970."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.header) != has(self.field)",
            message="needs exactly one of header and field",
            check=lambda deadline: (deadline.header is None) != (deadline.field is None),
        ),
    )

    header: Annotated[HeaderName | None, Field(description="A header of the NATS message.")] = None
    field: Annotated[HeaderName | None, Field(description="A field of the message's JSON object.")] = None


class Consume(ApiModel):
    """Where messages come from, and how many a pod holds."""

    nats: Annotated[NatsStream, Field(description=NatsStream.__doc__)]
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
    """A key-value bucket of the stream's own server: the key is the message's id, the value the result as JSON."""

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

    subject: Annotated[
        Subject, Field(description="The subject, on the stream's own server; a stream of yours takes it.")
    ]


class Nearline(ApiModel):
    """Work from a stream instead of requests: at least once, each id answered once, nothing lost while no pod runs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.deadLetters.subject != self.consume.nats.subject",
            message="deadLetters.subject must be another than consume.nats.subject, or dead letters would be consumed",
            check=lambda nearline: nearline.dead_letters.subject != nearline.consume.nats.subject,
            field="deadLetters",
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
