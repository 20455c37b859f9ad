"""The whole catalogue, for conditions, commands and the reference pages."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidegate.api.messages import accesses, any_kind, features, findings, inferences, pools
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.messages.message import CatalogueMessage
from tidegate.api.reasons import Reason

REASON_MESSAGES: Final[Mapping[Reason, CatalogueMessage]] = MappingProxyType(
    any_kind.MESSAGES | inferences.MESSAGES | accesses.MESSAGES | features.MESSAGES | pools.MESSAGES
)
"""Messages by the reason of a condition."""

PROBLEM_MESSAGES: Final[Mapping[ProblemReason, CatalogueMessage]] = MappingProxyType(findings.MESSAGES)
"""Messages by problem, for `tidegate analyze` and `tidegate doctor`."""


def messages_by_name() -> Mapping[str, CatalogueMessage]:
    """Return all messages by the name of their reason or problem."""
    return {
        name.value: message
        for messages in (REASON_MESSAGES, PROBLEM_MESSAGES)
        for name, message in messages.items()
    }
