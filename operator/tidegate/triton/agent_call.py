"""One call of an agent: JSON request, parsed report, and failures as the errors that reconcilers know."""

from typing import Final, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from tidegate.errors import AgentSilentError, AgentUnreachableError, LeadershipLostError
from tidegate_dataplane.contract.answers import AnswerError, read_body

_JSON = {"content-type": "application/json"}
_MAX_BYTES: Final = 1 << 20
"""Limit of a report; a report with a thousand versions has a tenth of that."""
ReportT = TypeVar("ReportT", bound=BaseModel)


def base_url(address: str, port: int) -> str:
    """Return the base URL of an address of either IP family."""
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


async def call_agent(
    session: aiohttp.ClientSession | None,
    method: str,
    url: str,
    body: str | None,
    report: type[ReportT],
    *,
    agent: str,
    call_timeout: aiohttp.ClientTimeout | None = None,
) -> ReportT:
    """Return the report that an agent answers with.

    `agent` is its name in messages; without `call_timeout` the session's timeout applies. Any pod with our labels may be called,
    so at most 1 MiB of the answer is read and no redirect is followed.

    Raise AgentUnreachableError, also for an answer that is not a report; its subclass AgentSilentError after a timeout; and
    LeadershipLostError when the agent has a desired state from a newer leader.
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
            timeout=call_timeout or session.timeout,
            allow_redirects=False,
        ) as response:
            answer = await read_body(response, _MAX_BYTES)
            if response.status == 409:
                message = f"{agent} has orders from a newer leader: {_first_bytes(answer)}"
                raise LeadershipLostError(message)
            if response.status != 200:
                message = f"{agent} answered {response.status}: {_first_bytes(answer)}"
                raise AgentUnreachableError(message)
            return report.model_validate_json(answer)
    except TimeoutError as error:
        message = f"{agent}: {type(error).__name__}: {error}"
        raise AgentSilentError(message) from error
    except (aiohttp.ClientError, OSError, AnswerError, ValidationError) as error:
        message = f"{agent}: {type(error).__name__}: {error}"
        raise AgentUnreachableError(message) from error


def _first_bytes(answer: bytes) -> str:
    return answer[:200].decode(errors="replace")
