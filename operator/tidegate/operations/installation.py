"""Which installation of Tidegate is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import DEPLOYMENT
from tidegate.kube.port import Manifest
from tidegate.planning.installation import COMPONENTS

OURS: Final = "app.kubernetes.io/name=tidegate"
INSTANCE: Final = "app.kubernetes.io/instance"
_COMPONENT: Final = "app.kubernetes.io/component"
_USUAL: Final = ("tidegate", "tidegate-system")


async def release_of(client: KubeClient, namespace: str | None) -> tuple[str, str]:
    """Name and namespace of the release in a namespace, or of the only one; the usual ones where nobody may be asked.

    Raises PermanentError when there are several.
    """
    try:
        found = await client.list(DEPLOYMENT, namespace=namespace or "", selector=OURS)
    except PermanentError:
        found = ()
    return release_among(found, namespace)


def release_among(deployments: Sequence[Manifest], namespace: str | None) -> tuple[str, str]:
    """The same from the Deployments of all releases; the usual names where there is none."""
    found = {
        (each["metadata"]["labels"].get(INSTANCE, _USUAL[0]), each["metadata"]["namespace"])
        for each in deployments
        if each["metadata"]["labels"].get(_COMPONENT) in COMPONENTS
    }
    if len(found) > 1:
        named = ", ".join(f"{release} in {place}" for release, place in sorted(found))
        message = (
            f"there are {len(found)} installations ({named}): name the namespace of one with "
            "--system-namespace, or with -n where the command has no other"
        )
        raise PermanentError(message)
    return next(iter(found), (_USUAL[0], namespace or _USUAL[1]))
