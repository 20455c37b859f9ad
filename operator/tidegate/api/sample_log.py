"""`spec.logging` of an Inference: the share of requests that is logged, and where to."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import ObjectName, WritableUri
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ValidationRule, ValidationRules, must_match

HOST_PATTERN: Final = r"[A-Za-z0-9][-A-Za-z0-9.]*"
PORT_PATTERN: Final = (
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"  # 1 to 65535
)

SampleShare = Annotated[
    str,
    Field(max_length=9, pattern=r"^(0\.[0-9]{1,6}|1(\.0{1,6})?)$"),
    ValidationRules(
        ValidationRule(
            cel="double(self) > 0.0",
            message='must be more than 0 and at most 1, like "0.01"; remove logging to log nothing',
            check=lambda text: Decimal(text) > 0,
        )
    ),
]

NatsUrl = Annotated[
    str,
    Field(min_length=1, max_length=300),
    ValidationRules(
        must_match(
            rf"(nats|tls)://{HOST_PATTERN}(:{PORT_PATTERN})?",
            "must be nats://<host>:<port> or tls://<host>:<port>, with a port of 1 to 65535; credentials belong into the "
            "Secret of secretName",
        )
    ),
]

SubjectName = Annotated[
    str,
    Field(min_length=1, max_length=200),
    ValidationRules(
        must_match(
            r"[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*",
            "must be words of letters, digits, dashes and underscores with single dots between, without wildcards",
        )
    ),
]


class NatsSinkSpec(ApiModel):
    """A JetStream subject. Each record is published once, with an acknowledgement."""

    url: Annotated[
        NatsUrl,
        Field(description="Server: nats://<host>:<port>, or tls://<host>:<port> to require encryption."),
    ]
    subject: Annotated[
        SubjectName,
        Field(
            description="Subject; one of your streams must store it, with a duplicate window of 2m or more."
        ),
    ]
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: nats-token, or nats-username and nats-password; ca.crt, "
            "tls.crt and tls.key for TLS. No other key is read. Mounted in the model's pods. Absent: no credentials."
        ),
    ] = None


class FileSinkSpec(ApiModel):
    """Files of compressed JSON lines, a new one per pod every minute or 8 MiB of samples."""

    uri: Annotated[
        WritableUri,
        Field(
            description="Folder: pvc://<claim>/<path> (a claim that every pod may write to), s3://<bucket>/<prefix> "
            "or gs://<bucket>/<prefix>."
        ),
    ]
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace with the AWS_… or GOOGLE_… keys that may write there. "
            "Absent: the Secret of the model."
        ),
    ] = None


class SampleSink(ApiModel):
    """Destination of the samples."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="has(self.nats) != has(self.files)",
            message="needs exactly one of nats and files",
            check=lambda sink: (sink.nats is None) != (sink.files is None),
        ),
    )

    nats: Annotated[NatsSinkSpec | None, Field(description=NatsSinkSpec.__doc__)] = None
    files: Annotated[FileSinkSpec | None, Field(description=FileSinkSpec.__doc__)] = None


class LoggingSpec(ApiModel):
    """Logs a share of the answered requests, with features and scores, for training and analysis. Requests never wait
    for it; samples that cannot be logged are counted."""

    sample: Annotated[
        SampleShare,
        Field(
            description='Share of the requests to log, more than 0 and at most 1, as a decimal in quotes: "0.01". '
            "A hash of the request id selects them, so every replica and version selects the same ids. "
            "A change takes effect at once, without a rollout or a version swap."
        ),
    ]
    sink: Annotated[SampleSink, Field(description=SampleSink.__doc__)]
