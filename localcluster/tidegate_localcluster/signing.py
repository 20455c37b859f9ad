"""Signs what is pushed to a registry, and attests what images are made of, by cosign."""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.progress import Progress, run_with_progress

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class SigningError(LocalClusterError):
    """Something cannot be signed."""


@dataclass(frozen=True, slots=True)
class Cosign:
    """The program cosign with a private key: a file, or the URI of a key management service."""

    program: str
    key: str
    options: Sequence[str] = ()
    """More of its options."""

    def sign_digest(self, target: str, progress: Progress) -> None:
        """Sign `target`, a reference with a digest; the signature goes to the same registry. Raises LocalClusterError."""
        self._run_cosign("sign", [], target, f"signing {target}", progress)

    def attest_sbom(self, target: str, document: Path, progress: Progress) -> None:
        """Attest that the CycloneDX document lists what `target` is made of, likewise."""
        arguments = ["--type", "cyclonedx", "--predicate", str(document)]
        self._run_cosign("attest", arguments, target, f"attesting the contents of {target}", progress)

    def _run_cosign(
        self, command: str, arguments: Sequence[str], target: str, task: str, progress: Progress
    ) -> None:
        # A tag may lead to another image by now: only a digest is what was pushed.
        if _DIGEST.fullmatch(target.rpartition("@")[2]) is None:
            raise SigningError(f"{target} names no digest, and only a digest can be signed")
        own = [self.program, command, "--key", self.key, "--yes", *self.options]
        run_with_progress([*own, *arguments, target], task=task, progress=progress)


def add_signing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options from which `find_cosign` reads."""
    parser.add_argument(
        "--cosign-key",
        default="",
        metavar="KEY",
        help="sign with cosign and this key: a file, or a URI of a KMS",
    )
    parser.add_argument(
        "--cosign-options", default="", metavar="OPTIONS", help="more options for cosign, in one argument"
    )


def find_cosign(options: argparse.Namespace, *, plain_http: bool) -> Cosign | None:
    """Return cosign with the key that the options name; None without a key. Raises SigningError if it is missing."""
    if not options.cosign_key:
        return None
    program = which("cosign")
    if program is None:
        raise SigningError(
            "cosign is not on PATH: install it (https://docs.sigstore.dev/cosign), or omit COSIGN_KEY"
        )
    own = ["--allow-http-registry"] if plain_http else []
    return Cosign(program, options.cosign_key, (*own, *shlex.split(options.cosign_options)))


def read_digest(text: str) -> str:
    """Return the one digest in a tool's output. Raises SigningError if there is none, or more than one."""
    digests = {match[0] for match in _DIGEST.finditer(text)}
    if len(digests) != 1:
        raise SigningError(f"the push named {len(digests)} digests, so that nothing can be signed: {text!r}")
    return digests.pop()
