"""Find the installation of Tidegate that a command means."""

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
    """Return name and namespace of the release in a namespace, or of the only one.

    Without the right to list Deployments, return the default names. Raises PermanentError when there are several.
    """
    try:
        deployments = await client.list(DEPLOYMENT, namespace=namespace or "", selector=OURS)
    except PermanentError:
        deployments = ()
    return release_among(deployments, namespace)


def release_among(deployments: Sequence[Manifest], namespace: str | None) -> tuple[str, str]:
    """Choose the release among the Deployments of all releases; the default names if there is none.

    Raises PermanentError when there are several.
    """
    releases = {
        (deployment["metadata"]["labels"].get(INSTANCE, _USUAL[0]), deployment["metadata"]["namespace"])
        for deployment in deployments
        if deployment["metadata"]["labels"].get(_COMPONENT) in COMPONENTS
    }
    if len(releases) > 1:
        names = ", ".join(
            f"{release} in {release_namespace}" for release, release_namespace in sorted(releases)
        )
        message = (
            f"there are {len(releases)} installations ({names}): name the namespace of one with "
            "--system-namespace, or with -n where the command has no other"
        )
        raise PermanentError(message)
    return next(iter(releases), (_USUAL[0], namespace or _USUAL[1]))
