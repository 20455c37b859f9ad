"""Where a FeatureCompute stores the events of its streams."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.brokers import BrokerAddress
from tidegate.api.fields import DurationText, ObjectName, duration_between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ValidationRule, ValidationRules, must_match

KeyPrefix = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(
        must_match(
            r"[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?",
            "must be letters, digits, dots, dashes, underscores, colons and slashes, with a letter or a digit at both ends",
        )
    ),
]


class EmbeddedEvents(ApiModel):
    """Each replica reads the streams and stores their events on its own disk, at most eventStorage."""


class RedisEvents(ApiModel):
    """A Redis of version 7 or a compatible server, one primary with maxmemory-policy noeviction, which one ingester writes."""

    address: Annotated[BrokerAddress, Field(description="Server, as <host>:<port>.")]
    tls: Annotated[
        bool,
        Field(
            strict=True, description="Whether connections are encrypted and the server's name is verified."
        ),
    ] = False
    secret_name: Annotated[
        ObjectName | None,
        Field(
            description="Secret of the same namespace: redis-password, and redis-username if it is not the default user; ca.crt, "
            "tls.crt and tls.key for TLS. No other key is read. Mounted in the object's pods. Without tls the password is sent in "
            "the clear. Absent: no credentials."
        ),
    ] = None
    key_prefix: Annotated[
        KeyPrefix | None,
        Field(
            description="Beginning of all keys; a slash and the beginning of the plan's hash follow. Two objects of the same "
            "name in two clusters need two prefixes to share a server. Absent: <namespace>/<name>."
        ),
    ] = None
    timeout: Annotated[
        Annotated[DurationText, duration_between("1ms", "10s")],
        Field(
            description="How long a request waits for the events of its keys, from 1ms to 10s. Then it is answered from the last "
            "events that the replica has read of a key, or from none, and its output tidegate_not_current names the stream."
        ),
    ] = "50ms"


class EventStoreSpec(ApiModel):
    """Where the events of the streams are stored."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("embedded", "redis"),)

    embedded: Annotated[EmbeddedEvents | None, Field(description=EmbeddedEvents.__doc__)] = None
    redis: Annotated[RedisEvents | None, Field(description=RedisEvents.__doc__)] = None
