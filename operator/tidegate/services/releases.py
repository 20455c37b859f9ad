"""Read a release, and send it commands through an annotation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION
from tidegate.api.release_commands import RELEASE_COMMANDS, ReleaseCommand, ReleasePhase
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import MODEL_ACCESS
from tidegate.reports.release import ReleaseCommandResult, ReleaseListReport, ReleaseReport
from tidegate.services.listing import KindLister
from tidegate.services.objects import read_access

_POLL_INTERVAL_S: Final = 0.2


async def read_release(client: KubeClient, key: ObjectKey) -> ReleaseReport:
    """Return the state of the release. Raises TidegateError or ValueError with the way out."""
    return ReleaseReport.from_access(await read_access(client, key), ReleaseCommandResult.NOTHING_ASKED)


async def list_releases(client: KubeClient, namespace: str | None, labels: str) -> ReleaseListReport:
    """Return the releases of the ModelAccesses with these labels, in a namespace or in all for None.

    Raises TidegateError when they cannot be read.
    """
    reader = KindLister(client, ("" if namespace is None else namespace,))
    accesses = await reader.list_parsed(MODEL_ACCESS, ModelAccess, selector=labels)
    reader.check_readable()
    return ReleaseListReport(
        releases=tuple(
            ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)
            for access in sorted(accesses, key=lambda access: access.key)
            if access.spec.release is not None
        ),
        skipped=tuple(reader.skipped),
    )


async def send_command(
    client: KubeClient, key: ObjectKey, command: ReleaseCommand, max_wait: timedelta
) -> ReleaseReport:
    """Annotate the ModelAccess with the command and wait up to `max_wait` until the controllers act on it.

    Raises TidegateError or ValueError.
    """
    rule = RELEASE_COMMANDS[command]
    access = await read_access(client, key)
    ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)  # raises if there is no release
    annotation = access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()
    if annotation == command:
        if not rule.repeatable and _find_phase(access) in rule.leads_to:
            return ReleaseReport.from_access(access, ReleaseCommandResult.ALREADY, command)
        # The controllers act once on each value: they must observe its removal before the same one counts again.
        await _annotate_access(client, key, None)
        await _wait_until(client, key, lambda observed: _observed_command(observed) == "", max_wait)
    await _annotate_access(client, key, command)
    access, acted_on = await _wait_until(
        client, key, lambda observed: _observed_command(observed) == command, max_wait
    )
    if not acted_on:
        return ReleaseReport.from_access(access, ReleaseCommandResult.ASKED, command)
    effective = _find_phase(access) in rule.leads_to
    return ReleaseReport.from_access(
        access, ReleaseCommandResult.DONE if effective else ReleaseCommandResult.WITHOUT_EFFECT, command
    )


async def preview_command(client: KubeClient, key: ObjectKey, command: ReleaseCommand) -> ReleaseReport:
    """Report what a command would do in the present phase of the release, without a write.

    Raises TidegateError or ValueError.
    """
    rule = RELEASE_COMMANDS[command]
    access = await read_access(client, key)
    phase = _find_phase(access)
    annotation = access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()
    if annotation == command and not rule.repeatable and phase in rule.leads_to:
        result = ReleaseCommandResult.ALREADY
    elif phase in rule.effective_in | rule.leads_to:
        result = ReleaseCommandResult.DONE
    else:
        result = ReleaseCommandResult.WITHOUT_EFFECT
    return ReleaseReport.from_access(access, result, command, dry_run=True)


async def _annotate_access(client: KubeClient, key: ObjectKey, command: ReleaseCommand | None) -> None:
    patch = {"metadata": {"annotations": {RELEASE_ANNOTATION: None if command is None else command.value}}}
    if await client.merge(MODEL_ACCESS, key, patch, Fence.unlimited()) is None:
        message = f"ModelAccess {key} was deleted meanwhile"
        raise PermanentError(message)


async def _wait_until(
    client: KubeClient, key: ObjectKey, predicate: Callable[[ModelAccess], bool], max_wait: timedelta
) -> tuple[ModelAccess, bool]:
    """Read the access until `predicate` is true or `max_wait` ends; return it, and whether it is."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait.total_seconds()
    while True:
        access = await read_access(client, key)
        if predicate(access) or loop.time() >= deadline:
            return access, predicate(access)
        await asyncio.sleep(_POLL_INTERVAL_S)


def _observed_command(access: ModelAccess) -> str:
    """Return the command that the controllers observed last."""
    return access.status.release.command if access.status.release is not None else ""


def _find_phase(access: ModelAccess) -> ReleasePhase | None:
    return access.status.release.phase if access.status.release is not None else None
