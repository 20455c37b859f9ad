"""Read the solver's last input for `tidegate plan` from the leader or from an address, and solve it with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.operations import what_if
from tidegate.operations.installation import release_of
from tidegate.operations.what_if import LastQuestion
from tidegate.reports.plan import PlanReport


async def plan_otherwise(pool: str, where: Where, body: Mapping[str, Any], address: str | None) -> PlanReport:
    """Return the decision that the allocator would make with the changes in `body`, a WhatIf as JSON.

    `address` (host:port) names one controllers process to query instead of the leader. Raises TidegateError with the
    way out.
    """
    question = what_if.question(body)
    last = await (_of_leader(pool, where) if address is None else what_if.at_address(address, pool))
    return await what_if.plan_otherwise(pool, question, last)


async def _of_leader(pool: str, where: Where) -> LastQuestion:
    async with connected(where) as (client, _):
        release, namespace = await release_of(client, where.namespace)
        return await what_if.of_leader(client, pool, release, namespace)
