"""Streams of NATS and topics of Kafka, which some kinds read."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import ObjectName
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.sample_log import HOST_PATTERN, PORT_PATTERN, NatsUrl, SubjectName
from tidegate.api.schema import ListSet, ValidationRule, ValidationRules, must_match, must_not_match
from tidegate_dataplane.contract import SaslMechanism

_NAME_RULE: Final = must_match(r"[A-Za-z0-9_-]+", "must be letters, digits, dashes and underscores")

StreamName = Annotated[str, Field(min_length=1, max_length=128), ValidationRules(_NAME_RULE)]
TopicName = Annotated[
    str,
    Field(min_length=1, max_length=249),
    ValidationRules(
        must_match(r"[A-Za-z0-9._-]+", "must be letters, digits, dots, dashes and underscores"),
        must_not_match(r"^[.]{1,2}$", "must not be . or .."),
    ),
]
BrokerAddress = Annotated[
    str,
    Field(min_length=1, max_length=300),
    ValidationRules(
        must_match(
            rf"{HOST_PATTERN}:{PORT_PATTERN}",
            "must be <host>:<port> with a port of 1 to 65535; put credentials into the Secret that secretName names",
        )
    ),
]
MessageFieldName = Annotated[str, Field(min_length=1, max_length=64), ValidationRules(_NAME_RULE)]


class BrokerSubject(ApiModel):
    """A subject of a JetStream stream."""

    url: Annotated[
        NatsUrl,
        Field(description="Server: nats://<host>:<port>, or tls://<host>:<port> to require encryption."),
    ]
    stream: Annotated[StreamName, Field(description="Name of the stream; it must exist.")]
    subject: Annotated[SubjectName, Field(description="Subject of the stream to consume.")]
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: nats-token, or nats-username and nats-password; ca.crt, "
            "tls.crt and tls.key for TLS. No other key is read. Mounted in the object's pods. Absent: no credentials."
        ),
    ] = None


class DeadLetters(ApiModel):
    """Dead-letter subject or topic on the stream's own broker: messages that cannot be used are published there, with the reason in a header."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("subject", "topic"),)

    subject: Annotated[
        SubjectName | None,
        Field(
            description="For a stream of NATS: a subject on the same server; one of your streams must store it."
        ),
    ] = None
    topic: Annotated[
        TopicName | None,
        Field(description="For a topic of Kafka: a topic of the same cluster; it must exist."),
    ] = None

    @property
    def target_name(self) -> str:
        """Return the subject or the topic."""
        return self.subject or self.topic or ""


class BrokerTopic(ApiModel):
    """A topic of a Kafka cluster."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.sasl) || has(self.secretName)",
            message="sasl needs a secretName, whose Secret has kafka-username and kafka-password",
            check=lambda kafka: kafka.sasl is None or kafka.secret_name is not None,
            field="sasl",
        ),
        ValidationRule(
            cel="!has(self.sasl) || self.sasl != 'PLAIN' || self.tls",
            message="sasl PLAIN would send the password in the clear: set tls: true, or use SCRAM-SHA-512",
            check=lambda kafka: kafka.sasl is not SaslMechanism.PLAIN or kafka.tls,
            field="sasl",
        ),
    )

    bootstrap_servers: Annotated[
        tuple[BrokerAddress, ...],
        Field(
            min_length=1,
            max_length=16,
            description="Servers of the cluster, each <host>:<port>; one that responds is enough, and lists the others.",
        ),
        ListSet(),
    ]
    topic: Annotated[TopicName, Field(description="Name of the topic; it must exist.")]
    tls: Annotated[
        bool,
        Field(
            strict=True, description="Whether connections are encrypted and the servers' names are verified."
        ),
    ] = False
    sasl: Annotated[
        SaslMechanism | None,
        Field(description="SASL mechanism for the user of the Secret. Absent: no authentication."),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: kafka-username and kafka-password for sasl; ca.crt, tls.crt and "
            "tls.key for tls. No other key is read. Mounted in the object's pods. Absent: no credentials."
        ),
    ] = None
