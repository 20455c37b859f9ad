"""The whole catalogue, for conditions, commands and the reference pages."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidegate.api.messages import (
    accesses,
    allocations,
    analysis,
    any_kind,
    batches,
    features,
    installation,
    overrides,
    placement,
    pods,
    pools,
    releases,
    samples,
    streams,
    versions,
)
from tidegate.api.messages.message import Message
from tidegate.api.messages.problem import Problem
from tidegate.api.reasons import Reason

OF_REASONS: Final[Mapping[Reason, Message]] = MappingProxyType(
    any_kind.MESSAGES
    | pods.MESSAGES
    | placement.MESSAGES
    | versions.MESSAGES
    | samples.MESSAGES
    | streams.MESSAGES
    | batches.MESSAGES
    | accesses.MESSAGES
    | releases.MESSAGES
    | features.MESSAGES
    | pools.MESSAGES
    | allocations.MESSAGES
    | overrides.MESSAGES
)
"""Messages by the reason of a condition."""

OF_PROBLEMS: Final[Mapping[Problem, Message]] = MappingProxyType(analysis.MESSAGES | installation.MESSAGES)
"""Messages by problem, for `tidegate analyze` and `tidegate doctor`."""


def by_name() -> Mapping[str, Message]:
    """Return all messages by the name of their reason or problem."""
    return {
        name.value: message for messages in (OF_REASONS, OF_PROBLEMS) for name, message in messages.items()
    }
