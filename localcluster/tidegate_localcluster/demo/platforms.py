"""Where the demo can run: a local cluster that it starts, or a cluster that the user already has."""

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.checks import check_machine
from tidegate_localcluster.cluster import ClusterOptions, LocalCluster
from tidegate_localcluster.demo import helm
from tidegate_localcluster.demo.errors import CommandError, DemoError
from tidegate_localcluster.demo.kubectl import Kubectl
from tidegate_localcluster.demo.object_store import BUCKET, OBJECT_STORE, ObjectStore
from tidegate_localcluster.forwards import SERVICE_PORTS
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.state import Forward
from tidegate_localcluster.supplies import find_source_root, find_supplies

CHART_IMAGES: Final[Mapping[str, str]] = {
    "operator": "operator",
    "dataplane": "dataplane",
    "triton": "triton-cpu",
    "gateway": "gateway",
}
"""Name in the chart's values → name of the image."""
LOCAL_MODELS_URI: Final = "file:///models"
MODELS_NAMESPACE: Final = "movielens"
NATS_IMAGE: Final = "nats:2"
"""The image in the example's manifest, which a cluster of the user's own pulls."""


@dataclass(frozen=True, slots=True)
class DemoEndpoints:
    """Addresses that this machine can reach, as host:port; None for what is not installed."""

    gateway: str
    dashboard: str | None = None
    prometheus: str | None = None
    persistent: bool = True
    """Whether the addresses still work after the demo has ended."""


@dataclass(frozen=True, slots=True)
class DemoSite:
    """What the demo needs to know about its cluster."""

    kubectl: Kubectl
    helm: helm.Helm
    models_folder: Path
    """Folder on this machine to which the demo publishes models."""
    models_uri: str
    """The same folder as the pods see it."""
    nats_image: str = NATS_IMAGE
    """Image of the example's broker."""
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    """Values for the chart, by path."""
    kubectl_command: str = "kubectl"
    """Command by which the user runs kubectl against this cluster."""
    dashboard_command: str = "tidegate dashboard"
    """Command by which the user opens the dashboard with their own rights, without a token."""
    upload_models: Callable[[], None] = lambda: None
    """Copies what was published to `models_folder` to where the pods read it, unless they read that folder."""


class DemoPlatform(Protocol):
    """A cluster, from nothing to ready for the chart."""

    @property
    def title(self) -> str:
        """Return the title of the first step."""
        ...

    def start(self, progress: Progress) -> DemoSite:
        """Make the cluster ready for the chart. Raises LocalClusterError."""
        ...

    def open_endpoints(self, site: DemoSite) -> AbstractContextManager[DemoEndpoints]:
        """Yield the addresses of what the chart installed, for as long as the context lasts."""
        ...

    def remove_demo(self, progress: Progress) -> str:
        """Remove what the demo created, and return a description of it."""
        ...


class LocalPlatform:
    """The local cluster of this repository, with images built from it."""

    title = "Start a Kubernetes cluster on this machine, and build our images"

    def __init__(self, home: Path, state_dir: Path) -> None:
        """Keep programs and images in `home`, the cluster in `state_dir`."""
        self._home = home
        self._cluster = LocalCluster(state_dir)
        is_default = state_dir.absolute() == (home / "clusters" / "default").absolute()
        self._state_option = "" if is_default else f" --state-dir {state_dir}"

    def start(self, progress: Progress) -> DemoSite:
        """Start the cluster if it does not run, and load images that are newer than it."""
        cluster = self._cluster
        if cluster.find_supervisor() is None:
            check_machine(cluster.files.path)
            options = ClusterOptions(name=cluster.files.path.name)
            supplies = find_supplies(self._home, options, None, progress, programs=["helm"])
            cluster.bring_up(options, supplies, progress)
        elif cluster.read_plan().control_plane_only:
            raise DemoError(
                f"the cluster in {cluster.files.path} is a control plane alone and runs no pods; "
                "end it with `tidegate local down`, then run the demo again"
            )
        references = self._load_newer_images(progress)
        tools = Binaries(self._home).ensure(["kubectl", "helm"], progress)
        kubectl = Kubectl(tools["kubectl"], cluster.files.kubeconfig)
        prometheus = SERVICE_PORTS[Forward.PROMETHEUS]
        return DemoSite(
            kubectl=kubectl,
            helm=helm.Helm(tools["helm"], kubectl),
            models_folder=cluster.files.models,
            models_uri=LOCAL_MODELS_URI,
            nats_image=references["nats"],
            kubectl_command=f".venv/bin/tidegate local kubectl{self._state_option}",
            dashboard_command=f".venv/bin/tidegate dashboard --kubeconfig {cluster.files.kubeconfig}",
            values={
                **{f"images.{value}": references[image] for value, image in CHART_IMAGES.items()},
                "models.hostPath": "/models",
                "models.nodeCache.hostPath": "/tmp/hostpath_pv/model-cache",  # noqa: S108  bound to the state folder
                "web.prometheusUrl": (
                    f"http://{prometheus.name}.{prometheus.namespace}.svc:{prometheus.port}"
                ),
            },
        )

    @contextmanager
    def open_endpoints(self, site: DemoSite) -> Generator[DemoEndpoints]:
        """Yield the ports that the cluster forwards from loopback."""
        del site
        status = self._cluster.read_status()
        gateway = status["gateway"]
        assert isinstance(gateway, dict)  # noqa: S101  the shape of the status document
        if gateway["grpc"] is None:
            raise DemoError(
                f"the cluster in {self._cluster.files.path} forwards no gateway: {status['message']}"
            )
        yield DemoEndpoints(
            gateway=str(gateway["grpc"]),
            dashboard=_strip_scheme(status["dashboard"]),
            prometheus=_strip_scheme(status["prometheus"]),
        )

    def remove_demo(self, progress: Progress) -> str:
        """Stop the cluster; models, programs and images stay for the next time."""
        leftovers = self._cluster.tear_down(progress)
        if leftovers:
            raise DemoError(f"the cluster is down, but something is left on the machine: {leftovers}")
        return f"the cluster is down; programs and images stay cached in {self._home}"

    def _load_newer_images(self, progress: Progress) -> Mapping[str, str]:
        """Build the images of the source tree, and load those that the running cluster does not have yet."""
        images = ImageBuilder(self._home, find_source_root()).ensure(
            [*CHART_IMAGES.values(), "nats"], progress
        )
        loaded_file = self._cluster.files.data / "demo-images.json"
        loaded = {image.ref for image in self._cluster.read_plan().images.values()}
        if loaded_file.exists():
            loaded.update(json.loads(loaded_file.read_text()))
        for image in images.values():
            if image.ref not in loaded:
                progress(f"loading {image.ref} into the running cluster")
                self._cluster.load_image(image.path, image.ref)
                loaded.add(image.ref)
        loaded_file.write_text(json.dumps(sorted(loaded)))
        return {name: image.ref for name, image in images.items()}


@dataclass(frozen=True, slots=True)
class OwnClusterSettings:
    """Settings of a cluster that the demo did not create."""

    registry: str
    """Where `make images` has pushed our images, and the cluster pulls them from."""
    tag: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], version: str) -> "OwnClusterSettings":
        """Read REGISTRY and TAG, whose default is our version. Raises DemoError without a registry."""
        registry = environment.get("REGISTRY", "").rstrip("/")
        if not registry:
            raise DemoError(
                "KUBECONFIG names a cluster of your own, so the demo also needs REGISTRY, which `make images` has "
                "pushed to (docs/how-to/demo-on-your-own-cluster.md); unset KUBECONFIG to use a local cluster"
            )
        return cls(registry=registry, tag=environment.get("TAG") or version)

    def image_reference(self, image: str) -> str:
        """Return the reference of one of our images."""
        return f"{self.registry}/{image}:{self.tag}"


class OwnCluster:
    """A cluster that is there already: kind, k3s, or one in a cloud. Nothing is started or built."""

    title = "Use the cluster that KUBECONFIG names"

    def __init__(self, home: Path, settings: OwnClusterSettings, kubeconfig: Path | None = None) -> None:
        """Find kubectl and Helm on PATH or below `home`, and the cluster in `kubeconfig` or in KUBECONFIG."""
        self._home = home
        self._kubeconfig = kubeconfig
        self._settings = settings

    def start(self, progress: Progress) -> DemoSite:
        """Check that the cluster answers, and report its name."""
        site = self._make_site(progress)
        context = site.kubectl.run("config", "current-context").strip()
        version = json.loads(site.kubectl.run("version", "-o", "json")).get("serverVersion", {})
        progress(f"context {context}, Kubernetes {version.get('gitVersion', 'of unknown version')}")
        return site

    @contextmanager
    def open_endpoints(self, site: DemoSite) -> Generator[DemoEndpoints]:
        """Forward ports by kubectl; Prometheus is at TIDEGATE_DEMO_PROMETHEUS if that is set."""
        with ExitStack() as stack:
            addresses: dict[Forward, str] = {}
            for forward in (Forward.GATEWAY, Forward.DASHBOARD):
                service = SERVICE_PORTS[forward]
                address = site.kubectl.forward_port(f"service/{service.name}", service.port, helm.NAMESPACE)
                addresses[forward] = stack.enter_context(address)
            yield DemoEndpoints(
                gateway=addresses[Forward.GATEWAY],
                dashboard=addresses[Forward.DASHBOARD],
                prometheus=_strip_scheme(os.environ.get("TIDEGATE_DEMO_PROMETHEUS")),
                persistent=False,
            )

    def remove_demo(self, progress: Progress) -> str:
        """Uninstall the release; the cluster, the CRDs and the demo's namespace stay."""
        site = self._make_site(progress)
        try:
            site.helm.uninstall_release()
        except CommandError as error:
            raise DemoError(f"the release could not be removed: {error}") from error
        return f"release {helm.RELEASE} is removed; CRDs and the namespace {MODELS_NAMESPACE} stay"

    def _make_site(self, progress: Progress) -> DemoSite:
        settings = self._settings
        tools = Binaries(self._home).ensure(["kubectl", "helm"], progress)
        kubectl = Kubectl(tools["kubectl"], self._kubeconfig)
        option = "" if self._kubeconfig is None else f" --kubeconfig {self._kubeconfig}"
        models = self._home / "demo-models"
        models.mkdir(parents=True, exist_ok=True)
        store = ObjectStore(kubectl, MODELS_NAMESPACE, settings.image_reference(OBJECT_STORE))
        return DemoSite(
            kubectl=kubectl,
            helm=helm.Helm(tools["helm"], kubectl),
            models_folder=models,
            models_uri=f"s3://{BUCKET}",
            nats_image=settings.image_reference("nats"),
            kubectl_command=f"kubectl{option}",
            dashboard_command=f"tidegate dashboard{option}",
            values={
                f"images.{name}": settings.image_reference(image) for name, image in CHART_IMAGES.items()
            },
            upload_models=lambda: store.upload_folder(models),
        )


def _strip_scheme(url: object) -> str | None:
    return str(url).removeprefix("http://") if url else None
