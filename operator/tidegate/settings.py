"""What the environment decides, read once: the chart sets each of these variables, TIDEGATE_ and the field's name."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate.planning.certificates import Part
from tidegate.resources.settings import ServingSettings
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.envoy.tracing import TracingSettings


class Settings(BaseSettings):
    """Settings of the three processes; each reads the ones that concern it."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", frozen=True, extra="ignore")

    release: Annotated[str, Field(description="Name of the Helm release; prefix of its objects.")] = (
        "tidegate"
    )
    watch_namespaces: Annotated[
        tuple[str, ...],
        Field(description="Namespaces that are served, as JSON; empty: all, and ComputePools with them."),
    ] = ()
    log_level: Annotated[
        str,
        Field(pattern="^(debug|info|warning|error)$", description="From which level on events are logged."),
    ] = "info"
    log_format: Annotated[str, Field(pattern="^(json|console)$", description="console is for people.")] = (
        "json"
    )
    listen_address: Annotated[
        str,
        Field(description="Where the probes and the dashboard listen; every address of a pod unless said."),
    ] = "0.0.0.0"  # noqa: S104
    probe_port: Annotated[int, Field(ge=0, le=65535, description="/healthz, /readyz and /metrics.")] = 8081

    otlp_endpoint: Annotated[
        str,
        Field(
            pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]+)?)?$",
            description="Receiver of OTLP over HTTP, without path; empty: no spans.",
        ),
    ] = ""
    otlp_sampling_percent: Annotated[
        float, Field(ge=0, le=100, description="Of the gateways' requests whose callers do not trace.")
    ] = 1.0
    otlp_authorities: Annotated[
        Path | None, Field(description="PEM of who vouches for an https receiver; absent: the system's.")
    ] = None
    otlp_authorization_file: Annotated[
        Path | None, Field(description="What the receiver is shown as the header Authorization.")
    ] = None

    dataplane_image: Annotated[str, Field(description="Of the agent and what else runs beside a model.")] = (
        "tidegate.local/dataplane:dev"
    )
    triton_image: Annotated[str, Field(description="Of the models' server.")] = (
        "tidegate.local/triton-cpu:dev"
    )
    image_pull_policy: Annotated[str, Field(description="Of both images, as in a pod's spec.")] = (
        "IfNotPresent"
    )
    models_host_path: Annotated[str, Field(description="Empty refuses file: URIs.")] = ""
    node_cache_path: Annotated[str, Field(description="Empty: no cache on the nodes.")] = ""
    node_cache_bytes: Annotated[int, Field(ge=0, description="Per namespace and node.")] = 0
    max_artefact_bytes: Annotated[int, Field(ge=1, description="Of one version's artefact.")] = 20 * 1024**3
    allowed_hosts: Annotated[tuple[str, ...], Field(description="Hosts of https: artefacts, as JSON.")] = ()
    allow_python: Annotated[
        bool, Field(description="Whether artefacts may bring code that runs: formats Python and TorchExport.")
    ] = False
    priority_class_prefix: Annotated[
        str, Field(description="Before the tier's name, in the pods' PriorityClass.")
    ] = "tidegate-"
    tls_directory: Annotated[Path, Field(description="ca.crt, tls.crt, tls.key of the controllers.")] = Path(
        "/etc/tidegate/tls"
    )
    own_certificates: Annotated[
        tuple[Part, ...],
        Field(
            description="Whose certificates the controllers make and renew in Secrets of the release, as JSON: "
            "controllers, xds, gateway. Their own they write into the folder of TIDEGATE_TLS_DIRECTORY."
        ),
    ] = ()
    certificate_spread_s: Annotated[
        float,
        Field(
            ge=0,
            description="How many seconds a new authority is given to reach every pod, before what it signed is used.",
        ),
    ] = 600
    gateway_port: Annotated[int, Field(ge=1, le=65535, description="Port of the gateways' Service.")] = 8080
    gateway_metrics_port: Annotated[
        int, Field(ge=1, le=65535, description="Where each gateway shows its counters.")
    ] = 9902
    workers: Annotated[int, Field(ge=1, le=64, description="Reconciles at once, per kind.")] = 8

    sharing_namespace: Annotated[
        str, Field(description="Namespace of NVIDIA's device plugin; empty: no node agents run.")
    ] = ""
    sharing_daemon: Annotated[str, Field(description="Name of the DaemonSet of its MPS control daemon.")] = (
        "nvidia-device-plugin-mps-control-daemon"
    )
    node_agent_port: Annotated[
        int, Field(ge=1, le=65535, description="Port of the node agents' reports.")
    ] = 8444

    xds_port: Annotated[
        int, Field(ge=0, le=65535, description="Where gateways and gRPC clients are told.")
    ] = 18000
    xds_tls_directory: Annotated[
        Path | None, Field(description="ca.crt, tls.crt, tls.key of the xDS servers; absent: no TLS.")
    ] = None
    auth_namespaces: Annotated[
        tuple[str, ...], Field(description="Namespaces whose labelled Secrets are read, as JSON.")
    ] = ()
    gateway_access_log: Annotated[
        bool, Field(description="Whether gateways write a line of JSON for each request to stdout.")
    ] = False
    history_bytes: Annotated[
        int,
        Field(
            ge=0, description="For resources that only earlier snapshots have, which `tidegate xds` shows."
        ),
    ] = 64 << 20
    jwks_hosts: Annotated[
        tuple[str, ...], Field(description="Hosts that are asked for issuers' keys, as JSON.")
    ] = ()
    jwks_authorities: Annotated[
        Path | None, Field(description="PEM of those who vouch for these hosts; absent: the system's.")
    ] = None
    gateway_tls_secrets: Annotated[
        tuple[str, ...],
        Field(
            description="Secrets of the own namespace with the certificates of the gateways' TLS port, as JSON."
        ),
    ] = ()
    gateway_client_authority: Annotated[
        str, Field(description="Secret of the own namespace by which clients' certificates are checked.")
    ] = ""
    report_port: Annotated[
        int, Field(ge=0, le=65535, description="Where the controllers read what gateways have accepted.")
    ] = 18001
    contents_port: Annotated[int, Field(ge=0, le=65535, description="On loopback, for `tidegate xds`.")] = (
        18002
    )

    web_port: Annotated[int, Field(ge=0, le=65535, description="The dashboard and the REST API.")] = 8080
    web_auth: Annotated[
        str, Field(pattern="^(token|proxy)$", description="Who says who a visitor of the dashboard is.")
    ] = "token"
    web_hosts: Annotated[
        tuple[str, ...], Field(description="Names that the dashboard is known by, besides its own, as JSON.")
    ] = ()
    web_key_file: Annotated[
        Path | None, Field(description="What sessions are sealed with; absent: a key of this process alone.")
    ] = None
    web_proxy_secret_file: Annotated[
        Path | None, Field(description="What an authenticating proxy shows that it is the one.")
    ] = None
    web_proxy_users: Annotated[
        tuple[str, ...], Field(description="The only users that the proxy may name, as JSON; empty: any.")
    ] = ()
    web_proxy_groups: Annotated[
        tuple[str, ...], Field(description="The only groups that the proxy may name, as JSON; empty: any.")
    ] = ()
    web_controllers: Annotated[
        str,
        Field(
            description="host:port of the controllers' probes where they are no pods; empty: the leader's pod."
        ),
    ] = ""
    prometheus_url: Annotated[
        str,
        Field(
            description="For checks of releases, the allocator's signals, and the dashboard's rates and charts; empty: none."
        ),
    ] = ""

    @property
    def gateway_tls(self) -> TlsSettings | None:
        """The gateways' TLS port; None: there is none."""
        if not self.gateway_tls_secrets:
            return None
        return TlsSettings(self.gateway_tls_secrets, self.gateway_client_authority)

    @property
    def gateway_tracing(self) -> TracingSettings | None:
        """Spans of the gateways' requests; None: there are none."""
        if not self.otlp_endpoint:
            return None
        return TracingSettings(self.otlp_endpoint, self.otlp_sampling_percent)

    def serving(self, client_ca: str) -> ServingSettings:
        """What the builders of model pods need; `client_ca` is the PEM of whom their agents are to trust."""
        return ServingSettings(
            dataplane_image=self.dataplane_image,
            triton_image=self.triton_image,
            client_ca=client_ca,
            models_host_path=self.models_host_path,
            node_cache_path=self.node_cache_path,
            node_cache_bytes=self.node_cache_bytes,
            max_artefact_bytes=self.max_artefact_bytes,
            allowed_hosts=self.allowed_hosts,
            allow_python=self.allow_python,
            image_pull_policy=self.image_pull_policy,
            priority_class_prefix=self.priority_class_prefix,
        )


class PodIdentity(BaseSettings):
    """Which pod this is; the downward API sets POD_NAME and POD_NAMESPACE."""

    model_config = SettingsConfigDict(env_prefix="POD_", frozen=True, extra="ignore")

    name: Annotated[str, Field(description="Who takes the Lease.")] = "tidegate-local"
    namespace: Annotated[str, Field(description="Of the installation.")] = "tidegate-system"
