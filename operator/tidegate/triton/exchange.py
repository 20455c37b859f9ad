"""One call of an agent of ours: JSON there, a report back, and every failure in the words that reconcilers know."""

from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from tidegate.errors import AgentUnreachableError, LeadershipLostError

_JSON = {"content-type": "application/json"}
ReportT = TypeVar("ReportT", bound=BaseModel)


def at(address: str, port: int) -> str:
    """The address as a URL has it, of either IP family."""
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


async def exchange(
    session: aiohttp.ClientSession | None,
    method: str,
    url: str,
    body: str | None,
    report: type[ReportT],
    *,
    who: str,
    within: aiohttp.ClientTimeout | None = None,
) -> ReportT:
    """What the agent answers; `who` names it in messages, and without `within` the session's counts.

    Raises AgentUnreachableError, and LeadershipLostError when the agent has heard from a newer leader.
    """
    if session is None:
        message = "agents are called outside of their client's async context"
        raise RuntimeError(message)
    try:
        async with session.request(
            method, url, data=body, headers=_JSON, timeout=within or session.timeout
        ) as response:
            text = await response.text()
            if response.status == 409:
                message = f"{who} has orders from a newer leader: {text[:200]}"
                raise LeadershipLostError(message)
            if response.status != 200:
                message = f"{who} answered {response.status}: {text[:200]}"
                raise AgentUnreachableError(message)
            return report.model_validate_json(text)
    except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
        message = f"{who}: {type(error).__name__}: {error}"
        raise AgentUnreachableError(message) from error
