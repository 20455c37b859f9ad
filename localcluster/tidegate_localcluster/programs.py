"""The programs of a local cluster and the sources of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate_localcluster.versions import read_pinned_version

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
SCRATCH_PREFIX = ".getting-"
"""The prefix of folders in which sources work; the next one removes those that a killed one left."""
CNI_PLUGINS = ("host-local", "portmap", "ptp")


@dataclass(frozen=True, slots=True)
class ProgramRelease:
    """A published file with a published sha256; its fields are templates with {version} and {architecture}."""

    url: str
    checksums: str
    """The URL of a file with the sha256 alone, or with lines of a sha256 and a file's name."""
    version: str
    member: str | None = None
    """The program's path in the archive; None when the file is the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program and its sources; None or empty: that source does not have it."""

    name: str
    accepted_version: str | None = None
    """The version to accept from KUBEBUILDER_ASSETS and PATH: '1.36.3', '4.' for any of 4, '' for any at all.

    None: use none from there, since a program of that name may be another one.
    """
    version_arguments: tuple[str, ...] = ("--version",)
    go_package: str | None = None
    """The argument of `go build`: an import path or a folder of our Go module."""
    go_module: str = ""
    """The folder with a go.mod of the program's own; empty: it is in the go.mod of all others."""
    release: ProgramRelease | None = None
    debian_packages: tuple[str, ...] = ()
    """The packages of the program and of the shared libraries that a small machine may lack."""
    debian_path: str = ""

    def __str__(self) -> str:
        """Return name and version, for messages."""
        return (
            f"{self.name} {self.accepted_version}"
            if self.accepted_version and self.accepted_version[-1] != "."
            else self.name
        )


def _kubernetes_program(name: str, *version_arguments: str) -> Program:
    version = read_pinned_version("k8s.io/kubernetes")
    url = f"https://dl.k8s.io/v{{version}}/bin/linux/{{architecture}}/{name}"
    return Program(
        name=name,
        accepted_version=version,
        version_arguments=version_arguments or ("--version",),
        go_package=f"k8s.io/kubernetes/cmd/{name}",
        release=ProgramRelease(url, f"{url}.sha256", version),
    )


def _containerd_program(name: str) -> Program:
    version = read_pinned_version("github.com/containerd/containerd/v2")
    url = (
        "https://github.com/containerd/containerd/releases/download/v{version}/"
        "containerd-{version}-linux-{architecture}.tar.gz"
    )
    return Program(
        name=name,
        accepted_version=version,
        version_arguments=("-v",),
        go_package=f"github.com/containerd/containerd/v2/cmd/{name}",
        release=ProgramRelease(url, f"{url}.sha256sum", version, member=f"bin/{name}"),
    )


def _cni_plugin(name: str, folder: str) -> Program:
    url = (
        "https://github.com/containernetworking/plugins/releases/download/v{version}/"
        "cni-plugins-linux-{architecture}-v{version}.tgz"
    )
    return Program(
        name=name,
        go_package=f"github.com/containernetworking/plugins/plugins/{folder}/{name}",
        release=ProgramRelease(
            url,
            f"{url}.sha256",
            read_pinned_version("github.com/containernetworking/plugins"),
            member=f"./{name}",
        ),
    )


_ETCD = "https://github.com/etcd-io/etcd/releases/download/v{version}/"
_COREDNS = "https://github.com/coredns/coredns/releases/download/v{version}/coredns_{version}_linux_{architecture}.tgz"
_HELM = "https://get.helm.sh/helm-v{version}-linux-{architecture}.tar.gz"

_CHROMIUM_LIBRARIES = (
    "libasound2",
    "libasyncns0",
    "libatk1.0-0",
    "libatspi2.0-0",
    "libbrotli1",
    "libbsd0",
    "libdav1d6",
    "libdbus-1-3",
    "libdouble-conversion3",
    "libdrm2",
    "libexpat1",
    "libflac12",
    "libfontconfig1",
    "libfreetype6",
    "libgbm1",
    "libglib2.0-0",
    "libgraphite2-3",
    "libharfbuzz-subset0",
    "libharfbuzz0b",
    "libjpeg62-turbo",
    "liblcms2-2",
    "libminizip1",
    "libmp3lame0",
    "libmpg123-0",
    "libnspr4",
    "libnss3",
    "libogg0",
    "libopenh264-7",
    "libopenjp2-7",
    "libopus0",
    "libpng16-16",
    "libpulse0",
    "libsndfile1",
    "libsqlite3-0",
    "libvorbis0a",
    "libvorbisenc2",
    "libwayland-server0",
    "libx11-6",
    "libx11-xcb1",
    "libxau6",
    "libxcb1",
    "libxcomposite1",
    "libxdamage1",
    "libxdmcp6",
    "libxext6",
    "libxfixes3",
    "libxi6",
    "libxkbcommon0",
    "libxnvctrl0",
    "libxrandr2",
    "libxrender1",
)
"""The libraries that not every Debian has: apt and the essential packages bring the others.

If a newer Chromium fails with 'error while loading shared libraries', add the missing one.
"""
_FONTS = ("fonts-inter", "fonts-dejavu-core")
"""For the same text on every machine: Inter as the default font, DejaVu for monospace and for symbols."""

PROGRAMS: Mapping[str, Program] = {
    program.name: program
    for program in (
        Program(
            name="etcd",
            accepted_version=read_pinned_version("go.etcd.io/etcd/server/v3"),
            go_package="go.etcd.io/etcd/server/v3",
            release=ProgramRelease(
                _ETCD + "etcd-v{version}-linux-{architecture}.tar.gz",
                _ETCD + "SHA256SUMS",
                read_pinned_version("go.etcd.io/etcd/server/v3"),
                member="etcd-v{version}-linux-{architecture}/etcd",
            ),
        ),
        _kubernetes_program("kube-apiserver"),
        _kubernetes_program("kube-controller-manager"),
        _kubernetes_program("kube-scheduler"),
        _kubernetes_program("kubelet"),
        _kubernetes_program("kube-proxy"),
        _kubernetes_program("kubectl", "version", "--client"),
        _containerd_program("containerd"),
        _containerd_program("containerd-shim-runc-v2"),
        _containerd_program("ctr"),
        _cni_plugin("host-local", "ipam"),
        _cni_plugin("portmap", "meta"),
        _cni_plugin("ptp", "main"),
        Program(
            name="helm",
            accepted_version="4.",
            version_arguments=("version",),
            go_package="helm.sh/helm/v4/cmd/helm",
            release=ProgramRelease(
                _HELM,
                _HELM + ".sha256sum",
                read_pinned_version("helm.sh/helm/v4"),
                member="linux-{architecture}/helm",
            ),
        ),
        Program(
            name="kwok",
            accepted_version=read_pinned_version("sigs.k8s.io/kwok"),
            go_package="sigs.k8s.io/kwok/cmd/kwok",
        ),
        Program(
            name="coredns",
            accepted_version=read_pinned_version("github.com/coredns/coredns"),
            version_arguments=("-version",),
            go_package="./cmd/coredns",
            release=ProgramRelease(
                _COREDNS, _COREDNS + ".sha256", read_pinned_version("github.com/coredns/coredns"), "coredns"
            ),
        ),
        Program(name="forward", go_package="./cmd/forward"),
        Program(name="pause", go_package="./cmd/pause"),
        Program(
            # In a go.mod of its own, so that an update builds nothing else again.
            name="gofakes3",
            go_package="github.com/johannesboyne/gofakes3/cmd/gofakes3",
            go_module="object_store",
        ),
        Program(
            name="runc",
            accepted_version="",
            debian_packages=("runc",),
            debian_path="usr/sbin/runc",
        ),
        Program(
            name="prometheus",
            accepted_version="",
            debian_packages=("prometheus",),
            debian_path="usr/bin/prometheus",
        ),
        Program(
            name="promtool",
            accepted_version="",
            debian_packages=("prometheus",),
            debian_path="usr/bin/promtool",
        ),
        Program(
            name="redis-server",
            accepted_version="",
            debian_packages=("redis-server", "redis-tools", "liblzf1", "libjemalloc2"),
            debian_path="usr/bin/redis-server",
        ),
        Program(
            # Not pinned, since Debian keeps only the newest. Never an installed one: a script wraps it, and it uses
            # the machine's fonts.
            name="chromium-headless-shell",
            debian_packages=("chromium-headless-shell", "chromium-common", *_CHROMIUM_LIBRARIES, *_FONTS),
            debian_path="usr/lib/chromium/chromium-headless-shell",
        ),
        Program(
            name="nft",
            accepted_version="",
            debian_packages=(
                "nftables",
                "libnftables1",
                "libnftnl11",
                "libmnl0",
                "libjansson4",
                "libedit2",
                "libbsd0",
                "libmd0",
                "libtinfo6",
                "libgmp10",
                "libxtables12",
            ),
            debian_path="usr/sbin/nft",
        ),
    )
}
