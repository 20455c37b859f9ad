"""A million answers, each checked by value, while objects come, change and go and processes are killed: none may be lost or wrong.

    python bench/churn.py [--state-dir DIR] [--answers 1000000] [--max-minutes 60] [--seed 1] [--output build/churn.json]

Sixteen clients, each pausing briefly after every answer so that the control plane gets processor time, send requests to
two Inferences of two replicas behind one ModelAccess. Meanwhile other Inferences are created and deleted, versions are
swapped and rolled back, the weights of the access change and its targets are exchanged, and controllers, xDS servers and
agents are killed with SIGKILL; their successors carry out the next change.
A change counts as done when every version that should serve after it has answered a request sent after the change began.
The seed determines every choice. Prints progress every 15 seconds and one JSON document, which is also written to OUTPUT.
Exits with 1 if a request failed, an answer was wrong, or fewer answers came than `--answers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from harness import gateway_load, open_space
from harness.churn_plan import FIRST_VERSIONS, LEFT, RIGHT, ChangeKind, ChurnAction, plan_actions
from tritonclient.utils import InferenceServerException

from builders.load import BATCHES, probe_batches
from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate.planning.pods import is_ready
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.demo import helm
from tidegate_localcluster.demo.load import LoadReport

REPLICAS: Final = 2
GUEST: Final = 1
EVERY_S: Final = 15.0
PAUSE_S: Final = 0.005
"""About 550 requests a second on two cores. Without a pause the clients keep etcd from the processor for minutes."""
DONE_WITHIN_S: Final = 400.0
"""The kubelet lets an agent that was killed often wait for up to five minutes."""
TROUBLES_SAID: Final = 50


class Churn:
    """Makes the changes one after the other, and waits for the effect of each."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._began = time.monotonic()
        self._troubles = 0
        self._restarts: dict[str, int] = {}
        self.doing = "the start"
        self.actions: Counter[str] = Counter({kind.value: 0 for kind in ChangeKind})
        self._published: set[int] = set()
        batches = probe_batches(self._published)
        self.load = gateway_load(space, batches, threads=BATCHES, pause_s=PAUSE_S, say=self._print_trouble)

    def start_serving(self) -> None:
        """Serve the first versions of both, with all traffic on the left one."""
        self._space.publish("guest", GUEST)
        for name, version in FIRST_VERSIONS.items():
            self._publish_version(name, version)
            self._space.inference(name, version=version, replicas=REPLICAS)
        self._space.access((LEFT, 100), (RIGHT, 0))
        self._space.ready(f"inference/{LEFT}", f"inference/{RIGHT}", "modelaccess/probe")
        for name in FIRST_VERSIONS:
            self._wait_for_replicas(name)

    def make_changes(self, answers: int, seed: int, minutes: float) -> None:
        """Make changes until so many answers have come, or the time is over."""
        end = time.monotonic() + minutes * 60
        for action in plan_actions(seed):
            if count_answers(self.load.report()) >= answers or time.monotonic() > end:
                return
            began = time.monotonic()
            self.doing = f"{action.kind} {action.inference} {action.version or ''}".rstrip()
            self._perform_action(action)
            wait_until(
                lambda: all(self.load.last_sent_at(str(version)) > began for version in action.answered_by),  # noqa: B023
                f"versions {action.answered_by} answer after {self.doing}",
                timeout_s=DONE_WITHIN_S,
                evidence=lambda: self.load.report().versions,
            )
            self.actions[action.kind] += 1

    def describe_progress(self, before: int, seconds: float) -> dict[str, Any]:
        """Return the progress; `before` answers had come `seconds` ago."""
        report = self.load.report()
        return {
            "seconds": round(report.seconds),
            "answers": count_answers(report),
            "wrong": report.wrong,
            "failed": report.failed,
            "per_s": round((count_answers(report) - before) / seconds),
            "actions": dict(self.actions),
            "doing": self.doing,
        }

    def _perform_action(self, action: ChurnAction) -> None:
        space, name = self._space, action.inference
        match action.kind:
            case ChangeKind.CREATE:
                self._create_guest(name)
            case ChangeKind.DELETE:
                for kind in ("modelaccess", "inference"):
                    space.kubectl.run("delete", kind, name, "-n", space.namespace, "--wait=false")
            case ChangeKind.SWAP | ChangeKind.ROLLBACK:
                self._publish_version(name, action.version)
                space.swap_version(name, action.version, timeout_s=DONE_WITHIN_S)
            case ChangeKind.FLIP | ChangeKind.TARGETS:
                targets = [{"inference": target, "weight": weight} for target, weight in action.targets]
                route = {"name": "default", "targets": targets, "timeout": "10s"}
                space.patch("modelaccess", "probe", {"routes": [route]})
            case ChangeKind.KILL_CONTROLLERS:
                self._kill_component("controllers")
            case ChangeKind.KILL_XDS:
                self._kill_component("xds")
            case ChangeKind.KILL_AGENT:
                self._kill_agent(name)

    def _create_guest(self, name: str) -> None:
        space = self._space
        space.inference(name, uri=space.uri("guest"), version=GUEST)
        space.access((name, 100), name=name)
        space.serves(name, GUEST, timeout_s=DONE_WITHIN_S)

        def is_answered() -> bool:
            try:
                return space.ask(name).version == str(GUEST)
            except InferenceServerException:  # the gateways do not have its route yet
                return False

        wait_until(is_answered, f"{name} answers", timeout_s=DONE_WITHIN_S)

    def _publish_version(self, name: str, version: int) -> None:
        if not (self._space.folder(name) / str(version)).is_dir():
            self._space.publish(name, version)
        self._published.add(version)

    def _kill_component(self, component: str) -> None:
        # The pods of those that were killed last may not run yet.
        wait_until(
            lambda: self._space.installed.kill(f"tidegate {component}") >= 1,
            f"a process of {component} is killed",
            timeout_s=DONE_WITHIN_S,
        )
        # New pods at once: the kubelet lets a container that ends often wait for minutes.
        label = f"app.kubernetes.io/component={component}"
        arguments = ("-n", helm.NAMESPACE, "-l", label, "--force", "--grace-period=0", "--wait=false")
        self._space.kubectl.run("delete", "pods", *arguments)

    def _kill_agent(self, name: str) -> None:
        # Its pod takes no requests until it is back: the other one has to.
        self._wait_for_replicas(name)
        pods = sorted(self._space.pods(name), key=lambda pod: str(pod["metadata"]["name"]))
        chosen = pods[self.actions[ChangeKind.KILL_AGENT] % len(pods)]
        uid = chosen["metadata"]["uid"]
        self._restarts[uid] = count_restarts(chosen)
        assert self._space.installed.kill_in_pods("tidegate_dataplane.agent", [uid]) >= 1, name

    def _wait_for_replicas(self, name: str) -> None:
        def are_back() -> bool:
            # A pod is called ready for two seconds after its agent was killed.
            pods = self._space.pods(name)
            return len(pods) == REPLICAS and all(
                is_ready(pod) and count_restarts(pod) > self._restarts.get(pod["metadata"]["uid"], -1)
                for pod in pods
            )

        wait_until(
            are_back,
            f"all replicas of {name} are ready",
            timeout_s=DONE_WITHIN_S,
            evidence=lambda: self._space.status("inference", name),
        )

    def _print_trouble(self, trouble: str) -> None:
        self._troubles += 1
        if self._troubles <= TROUBLES_SAID:
            seconds = time.monotonic() - self._began
            print(f"{seconds:.1f} s, during {self.doing}: {trouble}", file=sys.stderr)


def count_answers(report: LoadReport) -> int:
    """Return the number of answers, correct or wrong."""
    return report.sent - report.failed


def count_restarts(pod: Mapping[str, Any]) -> int:
    """Return how often the pod's agent was restarted."""
    statuses = pod["status"].get("initContainerStatuses", ())  # where sidecars are
    return sum(status["restartCount"] for status in statuses if status["name"] == "agent")


@contextmanager
def print_progress(churn: Churn) -> Iterator[None]:
    """Print the progress while the block lasts."""
    ended = threading.Event()

    def keep_printing() -> None:
        answers, read_at = 0, time.monotonic()
        while not ended.wait(EVERY_S):
            read_next = time.monotonic()
            progress = churn.describe_progress(answers, read_next - read_at)
            print(json.dumps(progress), file=sys.stderr)
            answers, read_at = progress["answers"], read_next

    thread = threading.Thread(target=keep_printing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(EVERY_S)


def describe_result(churn: Churn, seed: int) -> dict[str, Any]:
    """Return the result, also of an interrupted churn."""
    report = churn.load.finish()
    return {
        "answers": count_answers(report),
        "wrong": report.wrong,
        "failed": report.failed,
        "actions": dict(churn.actions),
        "seconds": round(report.seconds, 1),
        "per_s": round(count_answers(report) / report.seconds),
        "p50_ms": round(report.quantile_ms(0.5), 1),
        "p99_ms": round(report.quantile_ms(0.99), 1),
        "versions": len(report.versions),
        "seed": seed,
        "problems": report.problems,
    }


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("build/churn.json"))
    options = parser.parse_args()
    with open_space(options.state_dir, "churn") as space:
        churn = Churn(space)
        churn.start_serving()
        try:
            with churn.load, print_progress(churn):
                churn.make_changes(options.answers, options.seed, options.max_minutes)
        finally:
            # The result is useful even if a change never took effect.
            result = describe_result(churn, options.seed)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(result, indent=2) + "\n")
            print(json.dumps(result, indent=2))
    return 1 if result["wrong"] or result["failed"] or result["answers"] < options.answers else 0


if __name__ == "__main__":
    sys.exit(main())
