"""The programs of a local cluster and the sources of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate_localcluster.versions import pinned

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
SCRATCH_PREFIX = ".getting-"
"""The prefix of folders in which sources work; the next one removes those that a killed one left."""
CNI_PLUGINS = ("host-local", "portmap", "ptp")


@dataclass(frozen=True, slots=True)
class Release:
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
    accepted: str | None = None
    """The version to accept from KUBEBUILDER_ASSETS and PATH: '1.36.3', '4.' for any of 4, '' for any at all.

    None: use none from there, since a program of that name may be another one.
    """
    version_arguments: tuple[str, ...] = ("--version",)
    package: str | None = None
    """The argument of `go build`: an import path or a folder of our Go module."""
    release: Release | None = None
    debian: tuple[str, ...] = ()
    """The packages of the program and of the shared libraries that a small machine may lack."""
    debian_path: str = ""

    def __str__(self) -> str:
        """Return name and version, for messages."""
        return f"{self.name} {self.accepted}" if self.accepted and self.accepted[-1] != "." else self.name


def _kubernetes(name: str, *version_arguments: str) -> Program:
    version = pinned("k8s.io/kubernetes")
    url = f"https://dl.k8s.io/v{{version}}/bin/linux/{{architecture}}/{name}"
    return Program(
        name=name,
        accepted=version,
        version_arguments=version_arguments or ("--version",),
        package=f"k8s.io/kubernetes/cmd/{name}",
        release=Release(url, f"{url}.sha256", version),
    )


def _containerd(name: str) -> Program:
    version = pinned("github.com/containerd/containerd/v2")
    url = (
        "https://github.com/containerd/containerd/releases/download/v{version}/"
        "containerd-{version}-linux-{architecture}.tar.gz"
    )
    return Program(
        name=name,
        accepted=version,
        version_arguments=("-v",),
        package=f"github.com/containerd/containerd/v2/cmd/{name}",
        release=Release(url, f"{url}.sha256sum", version, member=f"bin/{name}"),
    )


def _cni(name: str, folder: str) -> Program:
    url = (
        "https://github.com/containernetworking/plugins/releases/download/v{version}/"
        "cni-plugins-linux-{architecture}-v{version}.tgz"
    )
    return Program(
        name=name,
        package=f"github.com/containernetworking/plugins/plugins/{folder}/{name}",
        release=Release(
            url, f"{url}.sha256", pinned("github.com/containernetworking/plugins"), member=f"./{name}"
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
            accepted=pinned("go.etcd.io/etcd/server/v3"),
            package="go.etcd.io/etcd/server/v3",
            release=Release(
                _ETCD + "etcd-v{version}-linux-{architecture}.tar.gz",
                _ETCD + "SHA256SUMS",
                pinned("go.etcd.io/etcd/server/v3"),
                member="etcd-v{version}-linux-{architecture}/etcd",
            ),
        ),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        _kubernetes("kubectl", "version", "--client"),
        _containerd("containerd"),
        _containerd("containerd-shim-runc-v2"),
        _containerd("ctr"),
        _cni("host-local", "ipam"),
        _cni("portmap", "meta"),
        _cni("ptp", "main"),
        Program(
            name="helm",
            accepted="4.",
            version_arguments=("version",),
            package="helm.sh/helm/v4/cmd/helm",
            release=Release(
                _HELM, _HELM + ".sha256sum", pinned("helm.sh/helm/v4"), member="linux-{architecture}/helm"
            ),
        ),
        Program(name="kwok", accepted=pinned("sigs.k8s.io/kwok"), package="sigs.k8s.io/kwok/cmd/kwok"),
        Program(
            name="coredns",
            accepted=pinned("github.com/coredns/coredns"),
            version_arguments=("-version",),
            package="./cmd/coredns",
            release=Release(_COREDNS, _COREDNS + ".sha256", pinned("github.com/coredns/coredns"), "coredns"),
        ),
        Program(name="forward", package="./cmd/forward"),
        Program(name="pause", package="./cmd/pause"),
        Program(
            name="runc",
            accepted="",
            debian=("runc",),
            debian_path="usr/sbin/runc",
        ),
        Program(
            name="prometheus",
            accepted="",
            debian=("prometheus",),
            debian_path="usr/bin/prometheus",
        ),
        Program(
            name="promtool",
            accepted="",
            debian=("prometheus",),
            debian_path="usr/bin/promtool",
        ),
        Program(
            # Not pinned, since Debian keeps only the newest. Never an installed one: a script wraps it, and it uses
            # the machine's fonts.
            name="chromium-headless-shell",
            debian=("chromium-headless-shell", "chromium-common", *_CHROMIUM_LIBRARIES, *_FONTS),
            debian_path="usr/lib/chromium/chromium-headless-shell",
        ),
        Program(
            name="nft",
            accepted="",
            debian=(
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
