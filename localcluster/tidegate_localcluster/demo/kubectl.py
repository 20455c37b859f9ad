"""Run kubectl, and describe an object that is not in the expected state."""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from tidegate_localcluster.demo.errors import CommandError, DemoError
from tidegate_localcluster.process import wait_until

COMMAND_TIMEOUT_S: Final = 60.0
EVENTS_SHOWN: Final = 8
FORWARDING: Final = re.compile(r"Forwarding from (127\.0\.0\.1:\d+) ->")
POD_NOT_FOUND: Final = "unable to upgrade connection: pod not found"
POLL_INTERVAL_S: Final = 0.2


class Kubectl:
    """kubectl with one kubeconfig: the only access of the demo to the cluster."""

    def __init__(self, binary: Path, kubeconfig: Path | None) -> None:
        """Use `kubeconfig`, or kubectl's own search (KUBECONFIG, then ~/.kube/config) when it is None."""
        self._binary = binary
        self._environment = dict(os.environ)
        if kubeconfig is not None:
            self._environment["KUBECONFIG"] = str(kubeconfig)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment in which other programs use the same cluster."""
        return self._environment

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Return the output of kubectl. Raises CommandError with its error output if it fails or times out."""
        return run_command(
            [str(self._binary), *arguments], self._environment, stdin=stdin, timeout_s=timeout_s
        )

    def get(self, kind: str, name: str, namespace: str) -> Mapping[str, Any] | None:
        """Return the object, or None if it does not exist."""
        output = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(output) if output.strip() else None

    def apply(self, documents: str, namespace: str) -> str:
        """Apply manifests as a user would; `namespace` is the default for those that name none."""
        return self.run("apply", "-n", namespace, "-f", "-", stdin=documents)

    def ensure_namespace(self, name: str) -> None:
        """Create the namespace if it does not exist."""
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.run("apply", "-f", "-", stdin=json.dumps(document))

    def wait(self, condition: str, objects: Sequence[str], namespace: str, timeout_s: float) -> None:
        """Run `kubectl wait --for=<condition>`. Raises DemoError with conditions and events after `timeout_s`."""
        try:
            self.run(
                "wait", f"--for={condition}", *objects, "-n", namespace, f"--timeout={timeout_s:.0f}s",
                timeout_s=timeout_s + COMMAND_TIMEOUT_S,
            )  # fmt: skip
        except CommandError as error:
            names = ", ".join(objects)
            raise DemoError(
                f"{names} in namespace {namespace} did not become {condition} in {timeout_s:.0f} s: {error}\n"
                f"{self.describe_objects(objects, namespace)}"
            ) from error

    def wait_established(self, definitions: Sequence[str], timeout_s: float) -> None:
        """Wait until CRDs (by name) are served. Raises NotReadyError after `timeout_s`."""

        def are_established() -> bool:
            body = json.loads(self.run("get", "crds", *definitions, "-o", "json"))
            # Of one name kubectl returns the object itself, of several a List.
            return all(map(is_established, body.get("items", (body,))))

        description = f"CustomResourceDefinitions are established: {', '.join(definitions)}"
        wait_until(are_established, description=description, timeout_s=timeout_s)

    def describe_objects(self, objects: Sequence[str], namespace: str) -> str:
        """Describe objects that are not in the expected state: conditions, pods, last events. Never raises."""
        parts = [f"{name}:\n{self._describe_conditions(name, namespace)}" for name in objects]
        for title, arguments in (
            ("pods", ("get", "pods", "-n", namespace, "-o", "wide")),
            ("last events", ("get", "events", "-n", namespace, "--sort-by=.lastTimestamp")),
        ):
            try:
                lines = self.run(*arguments).rstrip().splitlines()
            except CommandError as error:
                lines = [str(error)]
            parts.append("\n".join([f"{title}:", *lines[:1], *lines[1:][-EVENTS_SHOWN:]]))
        return "\n".join(parts)

    @contextmanager
    def forward_port(self, target: str, port: int, namespace: str, timeout_s: float = 20.0) -> Generator[str]:
        """Forward a port of a Service or a pod to 127.0.0.1 while the context lasts, and yield its address.

        A kubelet may not know a pod yet that it has reported ready: kubectl is run again for `timeout_s`.
        Raises CommandError.
        """
        command = [
            str(self._binary),
            "port-forward",
            target,
            f":{port}",
            "-n",
            namespace,
            "--address=127.0.0.1",
        ]
        deadline = time.monotonic() + timeout_s
        while True:
            with subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process:
                reader: threading.Thread | None = None
                try:
                    assert process.stdout is not None  # noqa: S101  PIPE above; narrows for the type checkers
                    line = process.stdout.readline()
                    match = FORWARDING.search(line)
                    if match is not None:
                        # kubectl writes a line for each connection, and stops when nobody reads them.
                        reader = threading.Thread(target=_read_to_end, args=(process.stdout,), daemon=True)
                        reader.start()
                        yield match[1]
                        return
                finally:
                    process.terminate()
                    if reader is not None:
                        reader.join()
            if POD_NOT_FOUND not in line or time.monotonic() > deadline:
                raise CommandError(f"{' '.join(command)} said: {line.strip() or 'nothing'}")
            time.sleep(POLL_INTERVAL_S)

    def _describe_conditions(self, name: str, namespace: str) -> str:
        template = (
            "{range .status.conditions[*]}  {.type}={.status} {.reason}: {.message}{'\\n'}{end}"
            "{.status.failure}"
        )
        try:
            return (
                self.run("get", name, "-n", namespace, "-o", f"jsonpath={template}").rstrip()
                or "  no conditions"
            )
        except CommandError as error:
            return f"  {error}"


def is_established(definition: Mapping[str, Any]) -> bool:
    """Return whether the API server serves the kind of a CustomResourceDefinition.

    `kubectl wait --for=condition=Established` fails on a definition that was just created: its conditions are null
    for a moment, and kubectl exits with "accessor error: <nil> is of the type <nil>, expected []interface{}".
    """
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(
        (condition["type"], condition["status"]) == ("Established", "True") for condition in conditions
    )


def _read_to_end(stream: IO[str]) -> None:
    for _ in stream:
        pass


def run_command(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: str | None = None, timeout_s: float
) -> str:
    """Return the standard output of a program. Raises CommandError with its error output if it fails."""
    shown = " ".join(command[:4])
    try:
        process = subprocess.run(
            command,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{shown} …: {error}") from error
    if process.returncode != 0:
        output = (process.stderr or process.stdout).strip() or "nothing"
        raise CommandError(f"{shown} … ended with exit status {process.returncode} and said: {output}")
    return process.stdout
