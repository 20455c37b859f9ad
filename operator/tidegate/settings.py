"""Settings from environment variables, TIDEGATE_ and the field's name; the chart sets them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate.planning.certificates import CertificatePart
from tidegate.resources.settings import DEFAULT_POD_USER, ServingSettings
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.envoy.tracing import TracingSettings


class ControlPlaneSettings(BaseSettings):
    """Settings of the three processes; each reads those that it needs."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", frozen=True, extra="ignore")

    release: Annotated[
        str,
        Field(
            description="Name of the installation, the prefix of its objects: the Helm release, or fullnameOverride."
        ),
    ] = "tidegate"
    watch_namespaces: Annotated[
        tuple[str, ...],
        Field(description="Namespaces to watch, as JSON; empty: all, and ComputePools as well."),
    ] = ()
    log_level: Annotated[
        str,
        Field(pattern="^(debug|info|warning|error)$", description="Lowest level of events that are logged."),
    ] = "info"
    log_format: Annotated[str, Field(pattern="^(json|console)$", description="console is for people.")] = (
        "json"
    )
    listen_address: Annotated[
        str,
        Field(description="Address for the probes and the dashboard; by default every address of the pod."),
    ] = "0.0.0.0"  # noqa: S104
    probe_port: Annotated[
        int, Field(ge=0, le=65535, description="Port of /healthz, /readyz and /metrics.")
    ] = 8081

    otlp_endpoint: Annotated[
        str,
        Field(
            pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]+)?)?$",
            description="URL of the receiver of OTLP over HTTP, without path; empty: no spans.",
        ),
    ] = ""
    otlp_sampling_percent: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="Share of the gateways' requests to trace if their callers do not trace, in percent.",
        ),
    ] = 1.0
    otlp_authorities: Annotated[
        Path | None,
        Field(description="PEM file of the authorities for an https receiver; absent: the system's."),
    ] = None
    otlp_authorization_file: Annotated[
        Path | None, Field(description="File with the Authorization header for the receiver.")
    ] = None

    dataplane_image: Annotated[
        str, Field(description="Image of the agent and of other containers next to a model.")
    ] = "tidegate.local/dataplane:dev"
    triton_image: Annotated[str, Field(description="Image of Triton.")] = "tidegate.local/triton-cpu:dev"
    image_pull_policy: Annotated[
        str, Field(description="Pull policy of both images, as in a pod's spec.")
    ] = "IfNotPresent"
    models_host_path: Annotated[
        str, Field(description="Folder of the nodes for file: URIs; empty: they are rejected.")
    ] = ""
    node_cache_path: Annotated[
        str, Field(description="Folder of the nodes for the cache of artefacts; empty: no cache.")
    ] = ""
    node_cache_bytes: Annotated[
        int, Field(ge=0, description="Size of the cache in bytes, per namespace and node.")
    ] = 0
    max_artefact_bytes: Annotated[
        int, Field(ge=1, description="Largest artefact of one version, in bytes.")
    ] = 20 * 1024**3
    allowed_hosts: Annotated[
        tuple[str, ...], Field(description="Allowed hosts of https: URIs, as JSON.")
    ] = ()
    allow_python: Annotated[
        bool,
        Field(
            description="Whether to allow formats that run code from the artefact: Python and TorchExport."
        ),
    ] = False
    pod_security_context: Annotated[
        Mapping[str, int],
        Field(
            description="runAsUser, runAsGroup and fsGroup of model pods, as JSON; the cluster assigns those that are absent."
        ),
    ] = DEFAULT_POD_USER
    priority_class_prefix: Annotated[
        str, Field(description="Prefix of the pods' PriorityClass, before the tier's name.")
    ] = "tidegate-"
    tls_directory: Annotated[
        Path, Field(description="Folder of ca.crt, tls.crt and tls.key of the controllers.")
    ] = Path("/etc/tidegate/tls")
    own_certificates: Annotated[
        tuple[CertificatePart, ...],
        Field(
            description="Components whose certificates the controllers create and renew in Secrets of the release, as JSON: "
            "controllers, xds, gateway. The controllers write their own into TIDEGATE_TLS_DIRECTORY."
        ),
    ] = ()
    own_session_key: Annotated[
        bool,
        Field(
            description="Whether the controllers write the dashboard's session key into the Secret <release>-web-session."
        ),
    ] = False
    certificate_spread_s: Annotated[
        float,
        Field(
            ge=0,
            description="Seconds until a new authority has reached every pod and its certificates are used.",
        ),
    ] = 600
    gateway_port: Annotated[int, Field(ge=1, le=65535, description="Port of the gateways' Service.")] = 8080
    gateway_metrics_port: Annotated[
        int, Field(ge=1, le=65535, description="Port of the gateways' metrics.")
    ] = 9902
    workers: Annotated[int, Field(ge=1, le=64, description="Concurrent reconciles per kind.")] = 8

    sharing_namespace: Annotated[
        str, Field(description="Namespace of NVIDIA's device plugin; empty: no node agents.")
    ] = ""
    sharing_daemon: Annotated[str, Field(description="Name of the DaemonSet of the MPS control daemon.")] = (
        "nvidia-device-plugin-mps-control-daemon"
    )
    node_agent_port: Annotated[
        int, Field(ge=1, le=65535, description="Port of the node agents' reports.")
    ] = 8444

    xds_port: Annotated[
        int, Field(ge=0, le=65535, description="Port of the xDS server for gateways and gRPC clients.")
    ] = 18000
    xds_tls_directory: Annotated[
        Path | None,
        Field(description="Folder of ca.crt, tls.crt and tls.key of the xDS servers; absent: no TLS."),
    ] = None
    auth_namespaces: Annotated[
        tuple[str, ...], Field(description="Namespaces whose labelled Secrets the xDS servers read, as JSON.")
    ] = ()
    gateway_access_log: Annotated[
        bool, Field(description="Whether gateways log a line of JSON per request to stdout.")
    ] = False
    history_bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Memory in bytes for resources of earlier snapshots, which `tidegate xds` shows.",
        ),
    ] = 64 << 20
    jwks_hosts: Annotated[tuple[str, ...], Field(description="Allowed hosts of issuers' keys, as JSON.")] = ()
    jwks_authorities: Annotated[
        Path | None, Field(description="PEM file of the authorities for these hosts; absent: the system's.")
    ] = None
    gateway_tls_secrets: Annotated[
        tuple[str, ...],
        Field(
            description="Secrets in the pod's namespace with the certificates of the gateways' TLS port, as JSON."
        ),
    ] = ()
    gateway_client_authority: Annotated[
        str, Field(description="Secret in the pod's namespace with the authority for client certificates.")
    ] = ""
    report_port: Annotated[
        int, Field(ge=0, le=65535, description="Port where the controllers read what gateways have accepted.")
    ] = 18001
    contents_port: Annotated[
        int, Field(ge=0, le=65535, description="Port on loopback for `tidegate xds`.")
    ] = 18002

    web_port: Annotated[int, Field(ge=0, le=65535, description="Port of the dashboard and the REST API.")] = (
        8080
    )
    web_auth: Annotated[
        str,
        Field(
            pattern="^(token|proxy)$",
            description="How the dashboard authenticates users: by token or by an authenticating proxy.",
        ),
    ] = "token"
    web_hosts: Annotated[
        tuple[str, ...], Field(description="Additional host names of the dashboard, as JSON.")
    ] = ()
    web_key_file: Annotated[
        Path | None, Field(description="File with the key of sessions; absent: a random key of this process.")
    ] = None
    web_proxy_secret_file: Annotated[
        Path | None, Field(description="File with the shared secret of the authenticating proxy.")
    ] = None
    web_proxy_users: Annotated[
        tuple[str, ...], Field(description="Users that the proxy may name, as JSON; empty: any.")
    ] = ()
    web_proxy_groups: Annotated[
        tuple[str, ...], Field(description="Groups that the proxy may name, as JSON; empty: any.")
    ] = ()
    web_controllers: Annotated[
        str,
        Field(
            description="host:port of the controllers' probes if they do not run in pods; empty: the leader's pod."
        ),
    ] = ""
    web_grafana_url: Annotated[
        str, Field(description="Address of the Grafana that the dashboard links to; empty: no links.")
    ] = ""
    web_logs_url: Annotated[
        str,
        Field(
            description="Address of an Inference's logs with {namespace} and {name}, which the dashboard links to; empty: no links."
        ),
    ] = ""
    prometheus_url: Annotated[
        str,
        Field(
            description="URL of Prometheus for checks of releases, the allocator's signals, and the dashboard's charts; empty: none."
        ),
    ] = ""

    @property
    def gateway_tls(self) -> TlsSettings | None:
        """Return the settings of the gateways' TLS port; None if it is off."""
        if not self.gateway_tls_secrets:
            return None
        return TlsSettings(self.gateway_tls_secrets, self.gateway_client_authority)

    @property
    def gateway_tracing(self) -> TracingSettings | None:
        """Return the settings of the gateways' spans; None if tracing is off."""
        if not self.otlp_endpoint:
            return None
        return TracingSettings(self.otlp_endpoint, self.otlp_sampling_percent)

    def serving_settings(self, client_ca: str, namespace: str) -> ServingSettings:
        """Return the settings for model pods.

        `client_ca` is the PEM of the authority that agents trust, and `namespace` that of the gateways.
        """
        return ServingSettings(
            dataplane_image=self.dataplane_image,
            triton_image=self.triton_image,
            gateway=f"{self.release}-gateway.{namespace}.svc:{self.gateway_port}",
            client_ca=client_ca,
            models_host_path=self.models_host_path,
            node_cache_path=self.node_cache_path,
            node_cache_bytes=self.node_cache_bytes,
            max_artefact_bytes=self.max_artefact_bytes,
            allowed_hosts=self.allowed_hosts,
            allow_python=self.allow_python,
            image_pull_policy=self.image_pull_policy,
            priority_class_prefix=self.priority_class_prefix,
            security_context=self.pod_security_context,
        )


class PodIdentity(BaseSettings):
    """Name and namespace of this pod; the downward API sets POD_NAME and POD_NAMESPACE."""

    model_config = SettingsConfigDict(env_prefix="POD_", frozen=True, extra="ignore")

    name: Annotated[str, Field(description="Name of the pod, and holder of the Lease.")] = "tidegate-local"
    namespace: Annotated[str, Field(description="Namespace of the installation.")] = "tidegate-system"
