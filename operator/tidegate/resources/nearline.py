"""`spec.nearline` → what the agents are told, and what of it is the pods' own."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate_dataplane.contract import StreamOrder

PROMPT_DRAIN: Final[Mapping[str, str]] = MappingProxyType(
    {"TIDEGATE_AGENT_DRAIN_LEAST_S": "0", "TIDEGATE_AGENT_DRAIN_QUIET_S": "0"}
)
"""Environment of the agents whose work is a stream: it waits for the next pod, so this one leaves when it has yielded.

A pod that is asked by gateways stays for 5 s, until they have heard that it leaves.
"""

PROMPT_EXIT_S: Final = 1
"""And how long its server finishes requests: those of the stream were answered or given back before."""


def stream_order(inference: Inference) -> StreamOrder | None:
    """The agents' order; None consumes nothing."""
    nearline = inference.spec.nearline
    if nearline is None:
        return None
    nats, deadline = nearline.consume.nats, nearline.consume.deadline
    bucket = nearline.produce.store.nats
    return StreamOrder(
        url=nats.url,
        secret=nats.secret_name or "",
        stream=nats.stream,
        subject=nats.subject,
        consumer=nats.consumer or f"tidegate_{inference.metadata.namespace}_{inference.metadata.name}",
        max_in_flight=nearline.consume.max_in_flight,
        deadline_header=(deadline.header or "") if deadline is not None else "",
        deadline_field=(deadline.field or "") if deadline is not None else "",
        bucket=bucket.bucket,
        ttl_s=parse_duration(bucket.ttl) / timedelta(seconds=1),
        dead_letters=nearline.dead_letters.subject,
        max_deliveries=nearline.max_deliveries,
    )


def stream_secret(inference: Inference) -> str:
    """The Secret that is named for the stream; empty where none is."""
    nearline = inference.spec.nearline
    return (nearline.consume.nats.secret_name or "") if nearline is not None else ""
