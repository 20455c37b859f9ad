"""Runs a real Kubernetes control plane as four processes: etcd, API server, controller manager, scheduler.

On 127.0.0.1 it needs no root; a whole cluster runs it inside its namespaces, on its first node's address.
"""

import http.client
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.pki import FRONT_PROXY, Pki
from tidegate_localcluster.ports import ReservedPort
from tidegate_localcluster.process import ChildProcess, wait_until

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
LOOPBACK = "127.0.0.1"
PROBE_TIMEOUT_S = 2.0
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The policy file (audit.k8s.io/v1) and the file of an audit log."""

    policy: Path
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneOptions:
    """The settings that differ between a control plane alone and the one of a whole cluster."""

    port: int = 0
    """The API server's port; 0 takes a free one."""
    service_cidr: str = "10.96.0.0/16"
    hostpath_provisioner: bool = False
    """Let the controller manager provision kubernetes.io/host-path volumes (below /tmp/hostpath_pv)."""
    server_names: Sequence[str] = ()
    """More names and addresses for the API server's certificate."""
    audit: AuditOptions | None = None
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """More arguments by component, appended last: {'kube-apiserver': ['--v=2']}."""
    ready_timeout_s: float = 60.0


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC and without any token.

    etcd listens on a socket in `state_dir` (0700), so other users of the machine cannot read it; the API server
    listens on `address`, the others on 127.0.0.1. All of them die with the thread that called `start` (see ChildProcess).
    Use it as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        state_dir: Path,
        binaries: Mapping[str, Path],
        pki: Pki,
        address: str = LOOPBACK,
        options: ControlPlaneOptions | None = None,
    ) -> None:
        """Describe a control plane with its data, logs and kubeconfigs in `state_dir`; start nothing.

        `binaries` has a path for each of COMPONENTS; the API server listens on `address`, which must be reachable
        from this process.
        """
        self.state_dir = state_dir.resolve()
        self.address = address
        self.options = options or ControlPlaneOptions()
        self.port: int | None = None
        self.kubeconfig = self.state_dir / "kubeconfig"
        """The administrator's kubeconfig; `start` writes it."""
        self._binaries = binaries
        self._pki = pki
        self._processes: dict[str, ChildProcess] = {}

    @property
    def server_url(self) -> str:
        """Return the API server's URL; only after `start`."""
        return f"https://{self.address}:{self._bound_port}"

    @property
    def pids(self) -> Mapping[str, int]:
        """Return the process id of each component that runs."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    @property
    def processes(self) -> Sequence[ChildProcess]:
        """Return the components in the order of their start."""
        return tuple(self._processes.values())

    def start(self) -> None:
        """Start all components and wait until each is ready.

        Raises ProcessDiedError or NotReadyError with the component's name and its last log lines; then nothing runs.
        """
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state_dir.chmod(0o700)
        try:
            with (
                ReservedPort(self.address, self.options.port) as apiserver,
                ReservedPort(LOOPBACK) as controller_manager,
                ReservedPort(LOOPBACK) as scheduler,
            ):
                self.port = apiserver.number
                self._start_apiserver()
                self._start_controllers(controller_manager.number, scheduler.number)
        except BaseException:
            # Not `stop`: an API server that never reached its etcd takes ten seconds to end.
            for process in self.processes:
                process.kill()
            self._processes.clear()
            raise

    def stop(self) -> None:
        """Stop all components, etcd last: an API server without its etcd waits for it instead of ending."""
        for process in reversed(self.processes):
            process.stop()
        self._processes.clear()

    def __enter__(self) -> Self:
        """Start the control plane."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the control plane."""
        self.stop()

    @property
    def _bound_port(self) -> int:
        if self.port is None:
            raise LocalClusterError(f"the control plane in {self.state_dir} was not started")
        return self.port

    @property
    def _is_on_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    def _start_apiserver(self) -> None:
        self._pki.write_kubeconfig(
            self.kubeconfig, server=self.server_url, credentials=self._pki.issue_admin()
        )
        for socket in self.state_dir.glob("etcd*.sock:0"):
            socket.unlink()
        self._start_component("etcd", self._etcd_arguments())
        self._start_component("kube-apiserver", self._apiserver_arguments())
        self._wait_until_healthy("kube-apiserver answers /readyz", self.address, self._bound_port, "/readyz")

    def _start_controllers(self, controller_manager_port: int, scheduler_port: int) -> None:
        self._start_component(
            "kube-controller-manager", self._controller_manager_arguments(controller_manager_port)
        )
        self._start_component("kube-scheduler", self._scheduler_arguments(scheduler_port))
        self._wait_until_healthy(
            "kube-controller-manager answers /healthz", LOOPBACK, controller_manager_port, "/healthz"
        )
        self._wait_until_healthy("kube-scheduler answers /healthz", LOOPBACK, scheduler_port, "/healthz")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait_until_healthy(
            "namespace default has a ServiceAccount", self.address, self._bound_port, account
        )

    def _start_component(self, name: str, arguments: Sequence[str]) -> None:
        process = ChildProcess(
            name,
            [self._binaries[name], *arguments, *self.options.arguments.get(name, ())],
            log=self.state_dir / "logs" / f"{name}.log",
            directory=self.state_dir,
        )
        self._processes[name] = process
        process.start()

    def _wait_until_healthy(self, description: str, address: str, port: int, path: str) -> None:
        """Wait until https://address:port/path answers 200 to the administrator."""
        administrator = self._pki.issue_admin()
        tls = ssl.create_default_context(cafile=str(self._pki.authority.certificate))
        tls.load_cert_chain(administrator.certificate, administrator.key)

        def answers() -> bool:
            connection = http.client.HTTPSConnection(address, port, context=tls, timeout=PROBE_TIMEOUT_S)
            try:
                connection.request("GET", path)
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()

        wait_until(
            answers, description=description, processes=self.processes, timeout_s=self.options.ready_timeout_s
        )

    def _etcd_arguments(self) -> Sequence[str]:
        # Sockets relative to the working directory: an absolute path may exceed a socket's limit of 107 bytes.
        client, peer = "unix://etcd.sock:0", "http://127.0.0.1:1"
        return (
            "--name=tidegate",
            "--data-dir=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--listen-peer-urls=unix://etcd-peer.sock:0",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=tidegate={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _apiserver_arguments(self) -> Sequence[str]:
        kubernetes_service = str(next(ipaddress.ip_network(self.options.service_cidr).hosts()))
        serving = self._pki.issue_server(
            "kube-apiserver",
            [
                LOOPBACK,
                self.address,
                kubernetes_service,
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                *self.options.server_names,
            ],
        )
        kubelet_client, front_proxy = (
            self._pki.issue_apiserver_kubelet_client(),
            self._pki.issue_front_proxy_client(),
        )
        authority = self._pki.authority.certificate
        audit = self.options.audit
        return (
            "--etcd-servers=unix://etcd.sock:0",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            "--permit-port-sharing",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--service-cluster-ip-range={self.options.service_cidr}",
            f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
            f"--service-account-key-file={self._pki.service_account_public_key}",
            f"--service-account-signing-key-file={self._pki.service_account_key}",
            f"--kubelet-certificate-authority={authority}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={self._pki.front_proxy_authority.certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front_proxy.certificate}",
            f"--proxy-client-key-file={front_proxy.key}",
            # No pod can reach a loopback address, and an EndpointSlice must not contain one.
            f"--endpoint-reconciler-type={'none' if self._is_on_loopback else 'lease'}",
            "--profiling=false",
            *(
                ()
                if audit is None
                else (f"--audit-policy-file={audit.policy}", f"--audit-log-path={audit.log}")
            ),
        )

    def _controller_manager_arguments(self, port: int) -> Sequence[str]:
        authority = self._pki.authority
        return (
            *self._client_arguments("kube-controller-manager", port),
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            f"--service-account-private-key-file={self._pki.service_account_key}",
            "--use-service-account-credentials",
            # The default lies outside our folder, and the controller manager would create it.
            f"--flex-volume-plugin-dir={self.state_dir / 'flexvolume'}",
            "--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
            f"--enable-hostpath-provisioner={str(self.options.hostpath_provisioner).lower()}",
            # At the default of 20 requests a second 500 pods take 24 s.
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        )

    def _scheduler_arguments(self, port: int) -> Sequence[str]:
        return (
            *self._client_arguments("kube-scheduler", port),
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        )

    def _client_arguments(self, name: str, port: int) -> Sequence[str]:
        credentials = {
            "kube-controller-manager": self._pki.issue_controller_manager,
            "kube-scheduler": self._pki.issue_scheduler,
        }[name]()
        kubeconfig = self._pki.write_kubeconfig(
            self.state_dir / f"{name}.kubeconfig", server=self.server_url, credentials=credentials
        )
        serving = self._pki.issue_server(f"{name}-server", [LOOPBACK, "localhost"])
        return (
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            "--permit-port-sharing",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self._pki.authority.certificate}",
            "--leader-elect=false",
            "--profiling=false",
        )
