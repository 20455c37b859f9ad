"""Build the agents' order of `spec.nearline`, and what it needs in the pods."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.resources.brokers import make_kafka_order
from tidegate_dataplane.contract import StreamOrder

PROMPT_DRAIN: Final[Mapping[str, str]] = MappingProxyType(
    {"TIDEGATE_AGENT_DRAIN_LEAST_S": "0", "TIDEGATE_AGENT_DRAIN_QUIET_S": "0"}
)
"""Environment of agents that consume a stream: its messages wait for the next pod, so this one ends at once.

A pod behind gateways stays for 5 s, until they have removed it from their endpoints.
"""

PROMPT_EXIT_S: Final = 1
"""How long its server finishes requests: those of the stream were answered or returned before."""


def make_stream_order(inference: Inference) -> StreamOrder | None:
    """Return the agents' order; None consumes nothing."""
    nearline = inference.spec.nearline
    if nearline is None:
        return None
    nats, kafka, deadline = nearline.consume.nats, nearline.consume.kafka, nearline.consume.deadline
    bucket = nearline.produce.store.nats
    own_name = f"tidegate_{inference.metadata.namespace}_{inference.metadata.name}"
    return StreamOrder(
        url=bucket.url or (nats.url if nats is not None else ""),
        secret=bucket.secret_name or (nats.secret_name if nats is not None else None) or "",
        stream=nats.stream if nats is not None else "",
        subject=nats.subject if nats is not None else "",
        consumer=(nats.consumer or own_name) if nats is not None else "",
        kafka=make_kafka_order(kafka, kafka.group or own_name) if kafka is not None else None,
        max_in_flight=nearline.consume.max_in_flight,
        deadline_header=(deadline.header or "") if deadline is not None else "",
        deadline_field=(deadline.field or "") if deadline is not None else "",
        bucket=bucket.bucket,
        ttl_s=parse_duration(bucket.ttl) / timedelta(seconds=1),
        dead_letters=nearline.dead_letters.target_name,
        max_deliveries=nearline.max_deliveries,
    )


def find_stream_secret(inference: Inference) -> str:
    """Return the Secret of the stream's broker; empty if none is named."""
    nearline = inference.spec.nearline
    stream = (nearline.consume.kafka or nearline.consume.nats) if nearline is not None else None
    return (stream.secret_name or "") if stream is not None else ""


def find_results_secret(inference: Inference) -> str:
    """Return the Secret of the results' own server; empty if none is named."""
    nearline = inference.spec.nearline
    return (nearline.produce.store.nats.secret_name or "") if nearline is not None else ""
