"""Install and uninstall the chart with Helm."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_localcluster.demo.errors import CommandError, DemoError
from tidegate_localcluster.demo.kubectl import Kubectl, run_command

RELEASE: Final = "tidegate"
NAMESPACE: Final = "tidegate-system"
INSTALL_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Helm:
    """Helm for the cluster that `kubectl` uses."""

    binary: Path
    kubectl: Kubectl

    def install_chart(self, chart: Path, values: Mapping[str, object]) -> None:
        """Install or upgrade the release, and wait until it is ready.

        `values` are set by path (`tls.xds`); all others are the chart's defaults.
        Raises DemoError with pods and events if the release does not become ready.
        """
        settings = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
        command = [
            str(self.binary), "upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE,
            "--create-namespace", "--set-json=crds.enabled=false", "--wait", f"--timeout={INSTALL_TIMEOUT_S:.0f}s", *settings,
        ]  # fmt: skip
        try:
            run_command(command, self.kubectl.environment, timeout_s=INSTALL_TIMEOUT_S + 30.0)
        except CommandError as error:
            raise DemoError(
                f"chart {chart}: {error}\n{self.kubectl.describe_objects((), NAMESPACE)}"
            ) from error

    def uninstall_release(self) -> None:
        """Uninstall the release if it exists; CRDs, and with them the users' objects, stay."""
        command = [str(self.binary), "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found"]
        run_command([*command, "--wait"], self.kubectl.environment, timeout_s=INSTALL_TIMEOUT_S)
