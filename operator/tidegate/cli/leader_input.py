"""Fetch the last input of the solver for a command, whose user can name another installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import PermanentError

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.services.what_if import LastSolverInput


async def fetch_leader_input(client: KubeClient, pool: str, release: str, namespace: str) -> LastSolverInput:
    """Fetch the solver's last input about a pool from the leader of a release.

    Raises TidegateError; if no controllers lead, its message has the options to try.
    """
    # The solver takes a second to import.
    from tidegate.services.what_if import NoLeaderError, fetch_from_leader

    try:
        return await fetch_from_leader(client, pool, release, namespace)
    except NoLeaderError as error:
        message = (
            f"{error}: run tidegate doctor --system-namespace {namespace}, or name the installation's "
            "namespace with --system-namespace"
        )
        raise PermanentError(message) from error
