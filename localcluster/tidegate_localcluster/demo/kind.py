"""The demo on a cluster of kind, which it creates, and whose images it builds with Docker."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.platforms import DemoEndpoints, DemoSite, OwnCluster, OwnClusterSettings
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.publish_images import PUBLISHED_IMAGES, DockerPublisher, is_docker_running

KIND_CLUSTER: Final = "tidegate"
REGISTRY: Final = "kind.local/tidegate"
"""No host serves it: nodes have the images before a pod asks for them."""
_HOW_TO_INSTALL: Final = {
    "docker": "https://docs.docker.com/engine/install",
    "kind": "https://kind.sigs.k8s.io/docs/user/quick-start#installation",
}


class KindPlatform:
    """A cluster of kind of our own, beside those that the user has; the user's kubeconfig is not changed."""

    title = "Start a kind cluster, and build our images"

    def __init__(self, home: Path, source_root: Path, version: str) -> None:
        """Keep the kubeconfig in `home`; `version` is the tag of the images."""
        self._builder = ImageBuilder(home, source_root)
        self._source_root = source_root
        self._settings = OwnClusterSettings(REGISTRY, version)
        self._kubeconfig = home / "kind" / "kubeconfig"
        self._cluster = OwnCluster(home, self._settings, self._kubeconfig)

    def start(self, progress: Progress) -> DemoSite:
        """Create the cluster if there is none, and load the images that Docker has built. Raises LocalClusterError."""
        _check_programs()
        self._kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        options = ["--name", KIND_CLUSTER, "--kubeconfig", str(self._kubeconfig)]
        if KIND_CLUSTER in run_with_progress(
            ["kind", "get", "clusters"], task="looking for the kind cluster", progress=progress
        ):
            command = ["kind", "export", "kubeconfig", *options]
            run_with_progress(command, task="reading its kubeconfig", progress=progress)
        else:
            command = ["kind", "create", "cluster", *options, "--wait", "3m"]
            run_with_progress(command, task=f"creating the kind cluster {KIND_CLUSTER}", progress=progress)
        publisher = DockerPublisher(self._builder, self._source_root, KIND_CLUSTER)
        references = {name: self._settings.image_reference(name) for name in PUBLISHED_IMAGES}
        publisher.publish_images(references, None, progress)
        return self._cluster.start(progress)

    def open_endpoints(self, site: DemoSite) -> AbstractContextManager[DemoEndpoints]:
        """Forward ports by kubectl."""
        return self._cluster.open_endpoints(site)

    def remove_demo(self, progress: Progress) -> str:
        """Delete the cluster; Docker keeps the images for the next time."""
        _check_programs()
        command = ["kind", "delete", "cluster", "--name", KIND_CLUSTER, "--kubeconfig", str(self._kubeconfig)]
        run_with_progress(command, task=f"deleting the kind cluster {KIND_CLUSTER}", progress=progress)
        return f"the kind cluster {KIND_CLUSTER} is deleted; Docker keeps the images"


def _check_programs() -> None:
    """Raise DemoError that names what is missing, and where it is from, before anything is started."""
    missing = [name for name in _HOW_TO_INSTALL if shutil.which(name) is None]
    if missing:
        places = ", ".join(f"{name} ({_HOW_TO_INSTALL[name]})" for name in missing)
        raise DemoError(
            f"not on PATH: {places}; on Debian 12 with root, `make demo` needs neither Docker nor kind"
        )
    if not is_docker_running():
        raise DemoError("Docker's daemon does not answer `docker info`: start it, then try again")
