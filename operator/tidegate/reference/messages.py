"""docs/reference/reasons.md and docs/reference/messages/: pages about the catalogue of messages."""

from collections.abc import Mapping
from typing import Final

from tidegate.api.messages.catalogue import PROBLEM_MESSAGES, REASON_MESSAGES, messages_by_name
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.messages.message import CatalogueMessage
from tidegate.api.reasons import Reason
from tidegate.reference.markdown import escape_text, format_code, render_notice, render_table

_SOURCE: Final = "operator/tidegate/api/messages/"
_HEAD: Final = """# Reasons

Every condition of every kind has one of these in `reason`; `kubectl get` shows the one of `Ready`.
The condition's message names the object, the number and the way out.
`Stalled=True` means that waiting does not help.
The code never changes its meaning: `tidegate analyze` and `tidegate why` print it, and scripts can rely on it.

"""
_PROBLEMS: Final = """
## Problems without a condition

`tidegate analyze` and `tidegate doctor` look for these as well.

"""


def render_reasons_page() -> str:
    """Render docs/reference/reasons.md: a row for every reason and every problem, by name."""
    return (
        render_notice(_SOURCE)
        + _HEAD
        + _render_table("reason", REASON_MESSAGES)
        + _PROBLEMS
        + _render_table("problem", PROBLEM_MESSAGES)
    )


def render_message_pages() -> Mapping[str, str]:
    """Render docs/reference/messages/: a page per code, by file name."""
    return {f"{message.code}.md": _render_page(name, message) for name, message in messages_by_name().items()}


def _render_table(
    heading: str, messages: Mapping[Reason, CatalogueMessage] | Mapping[ProblemReason, CatalogueMessage]
) -> str:
    rows = (
        (
            format_code(name.value),
            f"[{message.code}](messages/{message.code}.md)",
            escape_text(message.meaning),
            escape_text(message.what_to_do),
        )
        for name, message in sorted(messages.items())
    )
    return render_table((heading, "code", "what it means", "what to do"), rows)


def _render_page(name: str, message: CatalogueMessage) -> str:
    return (
        f"{render_notice(_SOURCE)}"
        f"# {message.code}: {name}\n\n"
        f"Level: {message.level}\n\n"
        f"{escape_text(message.meaning)}\n\n"
        f"**What to do:** {escape_text(message.what_to_do)}\n\n"
        "[All messages](../reasons.md)\n"
    )
