"""Read a release, and send it commands through an annotation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION, ReleaseCommand, ReleasePhase
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import MODEL_ACCESS
from tidegate.reports.release import Acted, ReleaseReport

_LOOK_EVERY_S: Final = 0.2
_ENDS_IN: Final[Mapping[ReleaseCommand, ReleasePhase]] = {
    ReleaseCommand.PAUSE: ReleasePhase.PAUSED,
    ReleaseCommand.PROMOTE: ReleasePhase.PROMOTED,
    ReleaseCommand.ABORT: ReleasePhase.ROLLED_BACK,
}
"""Where these have been acted on before, there is nothing more to do; the others begin something each time."""
_ON_ITS_WAY: Final = frozenset(ReleasePhase) - {ReleasePhase.ROLLED_BACK}
_LEADS_TO: Final[Mapping[ReleaseCommand, AbstractSet[ReleasePhase]]] = {
    **{command: frozenset({phase}) for command, phase in _ENDS_IN.items()},
    # A restarted release may already have ended at the next read.
    ReleaseCommand.RESUME: frozenset({ReleasePhase.PROGRESSING}),
    ReleaseCommand.RESTART: _ON_ITS_WAY,
}
"""Where a release is once a command was acted on; anywhere else it had nothing to act on."""


async def release_of(client: KubeClient, key: ObjectKey) -> ReleaseReport:
    """Return the state of the release. Raises TidegateError or ValueError with the way out."""
    return ReleaseReport.of(await _read(client, key), Acted.NOTHING_ASKED)


async def tell(
    client: KubeClient, key: ObjectKey, command: ReleaseCommand, patience: timedelta
) -> ReleaseReport:
    """Annotate the ModelAccess with the command and wait up to `patience` until the controllers act on it.

    Raises TidegateError or ValueError.
    """
    access = await _read(client, key)
    ReleaseReport.of(access, Acted.NOTHING_ASKED)  # raises if there is no release
    annotation = access.metadata.annotations.get(RELEASE_ANNOTATION, "").strip()
    if annotation == command:
        if access.status.release is not None and access.status.release.phase is _ENDS_IN.get(command):
            return ReleaseReport.of(access, Acted.ALREADY, command)
        # The controllers act once on each value: they must observe its removal before the same one counts again.
        await _annotate(client, key, None)
        await _until(client, key, lambda observed: _heard(observed) == "", patience)
    await _annotate(client, key, command)
    access, acted_on = await _until(client, key, lambda observed: _heard(observed) == command, patience)
    if not acted_on:
        return ReleaseReport.of(access, Acted.ASKED, command)
    effective = access.status.release is not None and access.status.release.phase in _LEADS_TO[command]
    return ReleaseReport.of(access, Acted.DONE if effective else Acted.WITHOUT_EFFECT, command)


async def _read(client: KubeClient, key: ObjectKey) -> ModelAccess:
    body = await client.get(MODEL_ACCESS, key)
    if body is None:
        message = (
            f"there is no ModelAccess {key.name} in namespace {key.namespace}: "
            "kubectl get modelaccesses -A shows those there are"
        )
        raise PermanentError(message)
    return ModelAccess.parse(body)


async def _annotate(client: KubeClient, key: ObjectKey, command: ReleaseCommand | None) -> None:
    patch = {"metadata": {"annotations": {RELEASE_ANNOTATION: None if command is None else command.value}}}
    if await client.merge(MODEL_ACCESS, key, patch, Fence.unlimited()) is None:
        message = f"ModelAccess {key} was deleted meanwhile"
        raise PermanentError(message)


async def _until(
    client: KubeClient, key: ObjectKey, holds: Callable[[ModelAccess], bool], patience: timedelta
) -> tuple[ModelAccess, bool]:
    """Read the access until `holds` is true or `patience` runs out; return it, and whether it holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.total_seconds()
    while True:
        access = await _read(client, key)
        if holds(access) or loop.time() >= deadline:
            return access, holds(access)
        await asyncio.sleep(_LOOK_EVERY_S)


def _heard(access: ModelAccess) -> str:
    """Return the command that the controllers observed last."""
    return access.status.release.command if access.status.release is not None else ""
