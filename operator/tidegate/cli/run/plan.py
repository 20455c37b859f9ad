"""Read the solver's last input for `tidegate plan` from the leader or from an address, and solve it with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.reports.plan import PlanReport
from tidegate.services import what_if
from tidegate.services.installation import find_release
from tidegate.services.what_if import LastSolverInput


async def plan_what_if(
    pool: str, options: KubeOptions, body: Mapping[str, Any], address: str | None
) -> PlanReport:
    """Return the decision that the allocator would make with the changes in `body`, a WhatIf as JSON.

    `address` (host:port) names one controllers process to query instead of the leader. Raises TidegateError with the
    way out.
    """
    question = what_if.parse_what_if(body)
    last = await (
        _fetch_from_leader(pool, options) if address is None else what_if.fetch_from_address(address, pool)
    )
    return await what_if.plan_what_if(pool, question, last)


async def _fetch_from_leader(pool: str, options: KubeOptions) -> LastSolverInput:
    async with open_client(options) as (client, _):
        release, namespace = await find_release(client, options.namespace)
        return await what_if.fetch_from_leader(client, pool, release, namespace)
