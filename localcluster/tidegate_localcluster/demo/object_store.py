"""The S3 server of examples/first-model, which hands a folder of this machine to pods of any cluster."""

import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.kubectl import Kubectl
from tidegate_localcluster.supplies import find_source_root

OBJECT_STORE: Final = "object-store"
"""The name of its Deployment, its Service and its image."""
BUCKET: Final = "models"
PORT: Final = 9000
EXAMPLE_IMAGE: Final = "tidegate.local/object-store:0.1.0"
"""The image in the example's manifest."""
EXAMPLE_SECRET: Final = "{name: first-model-storage}"  # noqa: S105 - its metadata, not a secret
"""The metadata of the Secret in the example's manifest."""
READY_TIMEOUT_S: Final = 120.0
UPLOAD_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The server in one namespace, whose Secret `tidegate-storage` leads models to it."""

    kubectl: Kubectl
    namespace: str
    image: str

    def upload_folder(self, folder: Path) -> None:
        """Start the server if it does not run, and put every file of `folder` into its bucket.

        Raises DemoError with the file that was refused, and CommandError if the server does not start.
        """
        self.kubectl.ensure_namespace(self.namespace)
        self.kubectl.apply(read_manifest(self.image), self.namespace)
        deployment = (f"deployment/{OBJECT_STORE}",)
        self.kubectl.wait("condition=Available", deployment, self.namespace, READY_TIMEOUT_S)
        with self.kubectl.forward_port(f"service/{OBJECT_STORE}", PORT, self.namespace) as address:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                _put_file(f"http://{address}/{BUCKET}/{quote(path.relative_to(folder).as_posix())}", path)


def read_manifest(image: str) -> str:
    """Return the example with `image`, and its Secret as the one that all models of the namespace read."""
    manifest = (find_source_root() / "examples" / "first-model" / "object-store.yaml").read_text()
    return manifest.replace(EXAMPLE_IMAGE, image).replace(EXAMPLE_SECRET, "{name: tidegate-storage}")


def _put_file(url: str, path: Path) -> None:
    # Without a type of its own urllib calls the body a form.
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data=path.read_bytes(), method="PUT", headers=headers)  # noqa: S310  http://
    try:
        with urllib.request.urlopen(request, timeout=UPLOAD_TIMEOUT_S):  # noqa: S310
            pass
    except OSError as error:
        raise DemoError(f"{path} could not be put to {url}: {error}") from error
