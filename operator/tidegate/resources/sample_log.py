"""Build the agents' order of `spec.logging`, and what it needs in their pods."""

from tidegate.api.sample_log import Logging
from tidegate_dataplane.contract import SampleOrder


def sample_order(logging: Logging | None) -> SampleOrder | None:
    """Return the agents' order; None logs nothing."""
    if logging is None:
        return None
    nats = logging.sink.nats
    return SampleOrder(
        share=float(logging.sample),
        url=sample_url(logging),
        subject=nats.subject if nats is not None else "",
        secret=sample_secret(logging),
    )


def sample_url(logging: Logging | None) -> str:
    """Return where samples go; empty for nowhere."""
    if logging is None:
        return ""
    nats, files = logging.sink.nats, logging.sink.files
    return nats.url if nats is not None else files.uri if files is not None else ""


def sample_secret(logging: Logging | None) -> str:
    """Return the Secret of the sink; empty if none is named."""
    if logging is None:
        return ""
    sink = logging.sink.nats or logging.sink.files
    return (sink.secret_name or "") if sink is not None else ""
