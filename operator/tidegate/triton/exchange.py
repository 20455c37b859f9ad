"""One call of an agent of ours: JSON there, a report back, and every failure in the words that reconcilers know."""

from typing import Final, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from tidegate.errors import AgentSilentError, AgentUnreachableError, LeadershipLostError
from tidegate_dataplane.contract.answers import AnswerError, read_body

_JSON = {"content-type": "application/json"}
_MOST_BYTES: Final = 1 << 20
"""A report of a thousand versions has a tenth of it."""
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
    """Return what the agent answers; `who` names it in messages, and without `within` the session's counts.

    Any pod with our labels may be asked: no more than 1 MiB of its answer is read, and no redirect is followed.

    Raises AgentUnreachableError, also for an answer that is no report, of its kind AgentSilentError where no answer came in time, and
    LeadershipLostError when the agent has heard from a newer leader.
    """
    if session is None:
        message = "agents are called outside of their client's async context"
        raise RuntimeError(message)
    try:
        async with session.request(
            method,
            url,
            data=body,
            headers=_JSON,
            timeout=within or session.timeout,
            allow_redirects=False,
        ) as response:
            answer = await read_body(response, _MOST_BYTES)
            if response.status == 409:
                message = f"{who} has orders from a newer leader: {_words(answer)}"
                raise LeadershipLostError(message)
            if response.status != 200:
                message = f"{who} answered {response.status}: {_words(answer)}"
                raise AgentUnreachableError(message)
            return report.model_validate_json(answer)
    except TimeoutError as error:
        message = f"{who}: {type(error).__name__}: {error}"
        raise AgentSilentError(message) from error
    except (aiohttp.ClientError, OSError, AnswerError, ValidationError) as error:
        message = f"{who}: {type(error).__name__}: {error}"
        raise AgentUnreachableError(message) from error


def _words(answer: bytes) -> str:
    return answer[:200].decode(errors="replace")
