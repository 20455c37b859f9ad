"""What each pool's allocator asked its solver last, for those who ask: what if it were otherwise?"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from aiohttp import web

from tidegate.allocation import codec
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.conditions import timestamp
from tidegate.api.meta import ObjectKey

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_HERE: Final = frozenset({"127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Question:
    """One question: when it was asked, what is done with its answer, and all that the solver was told."""

    at: datetime
    mode: PolicyMode
    snapshot: AllocationSnapshot


class Questions:
    """Remembers the last one of each pool while this process leads, and tells it over HTTP."""

    def __init__(self) -> None:
        self._found: dict[ObjectKey, Question] = {}

    def known(self) -> Set[ObjectKey]:
        """The pools that were asked about."""
        return self._found.keys()

    def get(self, pool: ObjectKey) -> Question | None:
        """The last one about a pool; None where this process has asked none."""
        return self._found.get(pool)

    def put(self, pool: ObjectKey, question: Question) -> None:
        """Once it is asked."""
        self._found[pool] = question

    def forget(self, pool: ObjectKey) -> None:
        """It is gone, or nothing is decided about it."""
        self._found.pop(pool, None)

    def clear(self) -> None:
        """A term is over: somebody else decides."""
        self._found.clear()

    def routes(self) -> tuple[web.RouteDef, ...]:
        """GET /allocation/{pool}."""
        return (web.get("/allocation/{pool}", self._answer),)

    async def _answer(self, request: web.Request) -> web.Response:
        pool = request.match_info["pool"]
        if request.remote not in _HERE:
            # It says what requests are worth. A port forward, for which one needs a right, comes from the pod itself.
            said = "only the pod itself is told, and who has a port forward to it"
            return web.json_response({"error": said}, status=_FORBIDDEN)
        question = self._found.get(ObjectKey("", pool))
        if question is None:
            said = (
                f"the allocator of this process has not looked at a ComputePool {pool}: the one that leads does, where an "
                "Inference has spec.scaling and a node takes pods"
            )
            return web.json_response({"error": said}, status=_NOT_FOUND)
        return web.json_response(
            {
                "pool": pool,
                "at": timestamp(question.at),
                "mode": question.mode.value,
                "snapshot": codec.encode_snapshot(question.snapshot),
            }
        )
