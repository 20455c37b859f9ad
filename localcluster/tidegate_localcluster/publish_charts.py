"""Packages the charts for a registry and pushes them there: `python -m tidegate_localcluster.publish_charts REGISTRY`."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_parts import read_project_version
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.publish_images import is_loopback, print_progress, read_registry
from tidegate_localcluster.signing import Cosign, add_signing_arguments, find_cosign, read_digest

CHARTS: Final = ("tidegate-crds", "tidegate")
DEFAULT_REGISTRY: Final = "  registry: tidegate.local\n"
"""The line of values.yaml that names where images are pulled from."""


class ChartError(LocalClusterError):
    """A chart cannot be packaged."""


@dataclass(frozen=True, slots=True)
class ChartPublisher:
    """Helm, and what the packages are to say."""

    helm: Path
    source_root: Path
    registry: str
    version: str
    app_version: str
    """Tag of the images."""
    signature: Sequence[str] = ()
    """Helm's options to sign packages."""
    plain_http: bool = False

    def package_chart(self, name: str, folder: Path, progress: Progress) -> Path:
        """Write the chart's package to the folder, with its signature beside it, and return its path. Raises LocalClusterError."""
        with tempfile.TemporaryDirectory() as scratch:
            chart = Path(scratch) / name
            shutil.copytree(self.source_root / "charts" / name, chart)
            if name == "tidegate":
                self._name_registry(chart / "values.yaml")
            command: list[str | Path] = [
                self.helm,
                "package",
                chart,
                "--destination",
                folder,
                "--version",
                self.version,
            ]
            command += ["--app-version", self.app_version, *self.signature]
            run_with_progress(command, task=f"packaging {name} {self.version}", progress=progress)
        return folder / f"{name}-{self.version}.tgz"

    def push_package(self, package: Path, cosign: Cosign | None, progress: Progress) -> None:
        """Push a package with its signature, and sign it in the registry too. Raises LocalClusterError."""
        target = f"oci://{self.registry}/charts"
        plain = ["--plain-http"] if self.plain_http else []
        task = f"pushing {package.name} to {target}"
        lines = run_with_progress([self.helm, "push", package, target, *plain], task=task, progress=progress)
        if cosign is not None:
            name = package.name.removesuffix(f"-{self.version}.tgz")
            digest = read_digest("\n".join(lines))
            cosign.sign_digest(f"{self.registry}/charts/{name}@{digest}", progress)

    def _name_registry(self, values: Path) -> None:
        """Let the chart pull its images from the registry that it is pushed to."""
        text = values.read_text()
        if text.count(DEFAULT_REGISTRY) != 1:
            raise ChartError(
                f"{values.name} of the chart does not have the line {DEFAULT_REGISTRY.strip()!r}"
            )
        values.write_text(text.replace(DEFAULT_REGISTRY, f"  registry: {self.registry}\n"))


def run_publisher(arguments: Sequence[str] | None = None) -> int:
    """Package and push the charts, and print the next command; return the exit status."""
    options = _parse_arguments(arguments)

    try:
        product = read_project_version(options.root)
        publisher = ChartPublisher(
            helm=_find_helm(print_progress),
            source_root=options.root,
            registry=options.registry,
            version=options.version or product,
            app_version=options.tag or product,
            signature=_list_signature_options(options),
            plain_http=options.plain_http or is_loopback(options.registry),
        )
        cosign = find_cosign(options, plain_http=publisher.plain_http)
        options.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.output) as scratch:
            # All are packaged before one is pushed: Helm leaves an unsigned package if it cannot sign it.
            packages = [publisher.package_chart(name, Path(scratch), print_progress) for name in CHARTS]
            for package in packages:
                publisher.push_package(package, cosign, print_progress)
            for file in Path(scratch).iterdir():
                file.replace(options.output / file.name)
    except (LocalClusterError, OSError) as error:
        print_progress(str(error))
        return 1
    print_progress(
        f"next: helm upgrade --install tidegate oci://{options.registry}/charts/tidegate --version {publisher.version} "
        "--namespace tidegate-system --create-namespace --wait"
    )
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Package the charts so that they pull images from a registry, and push them to it."
    )
    parser.add_argument("registry", help="host, port and path, like registry.example.com/tidegate")
    parser.add_argument("--version", default="", help="version of the charts [default: the checkout's]")
    parser.add_argument("--tag", default="", help="tag of the images [default: the checkout's version]")
    parser.add_argument("--sign", default="", metavar="KEY", help="sign the packages with this key")
    parser.add_argument("--keyring", default="", help="file with the key [default: Helm's]")
    add_signing_arguments(parser)
    parser.add_argument("--plain-http", action="store_true", help="push without TLS, as always to loopback")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/charts"),
        help="folder of the packages [default: %(default)s]",
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    options = parser.parse_args(arguments)
    options.registry = read_registry(parser, options.registry)
    if options.keyring and not options.sign:
        parser.error("--keyring needs --sign, the name of the key in it")
    return options


def _list_signature_options(options: argparse.Namespace) -> list[str]:
    if not options.sign:
        return []
    keyring = ["--keyring", options.keyring] if options.keyring else []
    return ["--sign", "--key", options.sign, *keyring]


def _find_helm(progress: Progress) -> Path:
    """Return the Helm of this machine, else ours."""
    own = shutil.which("helm")
    return Path(own) if own is not None else Binaries().ensure(["helm"], progress)["helm"]


if __name__ == "__main__":
    sys.exit(run_publisher())
