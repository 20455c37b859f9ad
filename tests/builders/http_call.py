"""Calls of the test's own processes over HTTP, which may answer late on a busy machine."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from builders.waiting import wait_until

_TRY_S: Final = 10.0
"""After so long a call is repeated: its connection may be one that a process has lost."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, whatever its status."""

    status: int
    body: str


def call_http(request: str | urllib.request.Request, *, context: ssl.SSLContext | None = None) -> HttpAnswer:
    """Return the answer to a request that may be repeated: one without an answer is, for as long as tests wait.

    Raises:
        OSError: the process cannot be reached.
        NotInTimeError: it does not answer.
    """
    url = request if isinstance(request, str) else request.full_url

    def call() -> HttpAnswer | None:
        try:
            with urllib.request.urlopen(request, timeout=_TRY_S, context=context) as response:
                return HttpAnswer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, error.read().decode())
        except TimeoutError:
            return None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                return None
            raise

    return wait_until(call, what=f"{url} answers")


def read_page(url: str) -> str:
    """Return a page, as `call_http` does; a status other than 200 fails the test."""
    answer = call_http(url)
    assert answer.status == 200, f"{url} has status {answer.status}: {answer.body[:500]}"
    return answer.body
