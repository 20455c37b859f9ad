"""The cluster administrator's settings for model pods, as the builders need them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

DEFAULT_POD_USER: Final[Mapping[str, int]] = {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
"""User and groups of model pods: those of our images."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Values that the chart sets once for all model pods of a cluster."""

    dataplane_image: str
    """Reference of the image that holds the agent."""
    triton_image: str
    """Reference of the image that holds tritonserver on PATH."""
    gateway: str = ""
    """The gateways' `host:port` inside the cluster, for pods that call other models."""
    client_ca: str = ""
    """PEM of the authority that signs the controllers' client certificate; agents accept no other caller."""
    models_host_path: str = ""
    """Folder of every node that `file:` URIs read; empty means that `file:` URIs are refused."""
    node_cache_path: str = ""
    """Folder of every node in which pods keep fetched artefacts for each other; empty means no cache."""
    node_cache_bytes: int = 0
    """Bytes that one namespace may keep there."""
    max_artefact_bytes: int = 20 * 1024**3
    """Bytes that one version's artefact may have, fetched and unpacked."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names from which `https:` artefacts may be fetched."""
    allow_python: bool = False
    """Whether models in the Python format, which run code of their authors, are accepted."""
    image_pull_policy: str = "IfNotPresent"
    storage_secret: str = "tidegate-storage"  # noqa: S105 - the name of a Secret, not a secret
    """Secret in the model's own namespace with which artefacts are fetched where the object names no other."""
    priority_class_prefix: str = "tidegate-"
    """The chart's PriorityClasses are called this and a tier: tidegate-realtime."""
    security_context: Mapping[str, int] = field(default_factory=lambda: DEFAULT_POD_USER)
    """runAsUser, runAsGroup and fsGroup of the pods; the cluster assigns those that are absent, as OpenShift does."""


SettingsProvider: TypeAlias = Callable[[], ServingSettings]
"""Returns the present settings: the CA that agents trust changes while the controllers run."""
