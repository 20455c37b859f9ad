"""Build the agents' order of `spec.logging`, and what it needs in their pods."""

from tidegate.api.sample_log import LoggingSpec
from tidegate_dataplane.contract import SampleOrder


def make_sample_order(logging: LoggingSpec | None) -> SampleOrder | None:
    """Return the agents' order; None logs nothing."""
    if logging is None:
        return None
    nats = logging.sink.nats
    return SampleOrder(
        share=float(logging.sample),
        url=find_sample_url(logging),
        subject=nats.subject if nats is not None else "",
        secret=find_sample_secret(logging),
    )


def find_sample_url(logging: LoggingSpec | None) -> str:
    """Return where samples go; empty for nowhere."""
    if logging is None:
        return ""
    nats, files = logging.sink.nats, logging.sink.files
    return nats.url if nats is not None else files.uri if files is not None else ""


def find_sample_secret(logging: LoggingSpec | None) -> str:
    """Return the Secret of the sink; empty if none is named."""
    if logging is None:
        return ""
    sink = logging.sink.nats or logging.sink.files
    return (sink.secret_name or "") if sink is not None else ""
