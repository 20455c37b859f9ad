"""Find the installation of Tidegate that a command means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import DEPLOYMENT
from tidegate.kube.port import Manifest
from tidegate.planning.diagnosis.installation import COMPONENTS

TIDEGATE_SELECTOR: Final = "app.kubernetes.io/name=tidegate"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
_COMPONENT_LABEL: Final = "app.kubernetes.io/component"
_DEFAULT_RELEASE: Final = ("tidegate", "tidegate-system")


def gateway_selector(release: str) -> str:
    """Return the label selector of a release's gateways."""
    return f"{TIDEGATE_SELECTOR},{INSTANCE_LABEL}={release},{_COMPONENT_LABEL}=gateway"


async def find_release(client: KubeClient, namespace: str | None) -> tuple[str, str]:
    """Return name and namespace of the release in a namespace, or of the only one.

    Without the right to list Deployments, return the default names. Raises PermanentError when there are several.
    """
    try:
        deployments = await client.list(DEPLOYMENT, namespace=namespace or "", selector=TIDEGATE_SELECTOR)
    except PermanentError:
        deployments = ()
    return choose_release(deployments, namespace)


def choose_release(deployments: Sequence[Manifest], namespace: str | None) -> tuple[str, str]:
    """Choose the release among the Deployments of all releases; the default names if there is none.

    Raises PermanentError when there are several.
    """
    releases = {
        (
            deployment["metadata"]["labels"].get(INSTANCE_LABEL, _DEFAULT_RELEASE[0]),
            deployment["metadata"]["namespace"],
        )
        for deployment in deployments
        if deployment["metadata"]["labels"].get(_COMPONENT_LABEL) in COMPONENTS
    }
    if len(releases) > 1:
        names = ", ".join(
            f"{release} in {release_namespace}" for release, release_namespace in sorted(releases)
        )
        message = (
            f"there are {len(releases)} installations ({names}): name the namespace of one with "
            "--system-namespace"
        )
        raise PermanentError(message)
    return next(iter(releases), (_DEFAULT_RELEASE[0], namespace or _DEFAULT_RELEASE[1]))
