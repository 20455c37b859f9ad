"""docs/reference/reasons.md and docs/reference/messages/: pages about the catalogue of messages."""

from collections.abc import Mapping
from typing import Final

from tidegate.api.messages.catalogue import OF_PROBLEMS, OF_REASONS, by_name
from tidegate.api.messages.message import Message
from tidegate.api.messages.problem import Problem
from tidegate.api.reasons import Reason
from tidegate.reference.markdown import code, notice, plain, table

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


def reasons_page() -> str:
    """Render docs/reference/reasons.md: a row for every reason and every problem, by name."""
    return notice(_SOURCE) + _HEAD + _table("reason", OF_REASONS) + _PROBLEMS + _table("problem", OF_PROBLEMS)


def message_pages() -> Mapping[str, str]:
    """Render docs/reference/messages/: a page per code, by file name."""
    return {f"{message.code}.md": _page(name, message) for name, message in by_name().items()}


def _table(heading: str, messages: Mapping[Reason, Message] | Mapping[Problem, Message]) -> str:
    rows = (
        (
            code(name.value),
            f"[{message.code}](messages/{message.code}.md)",
            plain(message.meaning),
            plain(message.what_to_do),
        )
        for name, message in sorted(messages.items())
    )
    return table((heading, "code", "what it means", "what to do"), rows)


def _page(name: str, message: Message) -> str:
    return (
        f"{notice(_SOURCE)}"
        f"# {message.code}: {name}\n\n"
        f"Level: {message.level}\n\n"
        f"{plain(message.meaning)}\n\n"
        f"**What to do:** {plain(message.what_to_do)}\n\n"
        "[All messages](../reasons.md)\n"
    )
