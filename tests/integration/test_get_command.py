"""`tidegate get` against the real API server: once, and live in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from builders.inference import inference_body
from builders.waiting import LIMIT_S, LONGEST_S, Patience
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl

pytestmark = pytest.mark.usefixtures("crds")


class Models:
    """Inferences of one namespace, which nobody but the test touches."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def apply(self, name: str, *, team: str = "a", **spec: Any) -> None:
        body = inference_body(name, **spec)
        metadata = {"name": name, "labels": {"team": team}}
        self.kubectl.apply({**body, "metadata": metadata}, namespace=self.namespace)

    def stalled(self, name: str) -> None:
        at = "2026-01-01T00:00:00Z"
        conditions = [
            {
                "type": kind,
                "status": status,
                "reason": "PoolNotFound",
                "message": "m",
                "lastTransitionTime": at,
            }
            for kind, status in (("Ready", "False"), ("Stalled", "True"))
        ]
        patch = {"status": {"observedGeneration": 1, "conditions": conditions}}
        self.kubectl(
            *("patch", "inference", name, "-n", self.namespace, "--subresource=status"),
            *("--type=merge", "-p", json.dumps(patch)),
        )


@pytest.fixture
def models(kubectl: Kubectl, namespace: str) -> Models:
    made = Models(kubectl, namespace)
    made.apply("ctr")
    made.apply("cvr", team="b")
    made.stalled("cvr")
    return made


def test_objects_are_listed_and_chosen_and_who_may_see_none_is_told_so(
    models: Models, command_line: CommandLine
) -> None:
    def names(*arguments: str) -> list[str]:
        return [each["name"] for each in command_line("get", *arguments)["items"]]

    here = ("-n", models.namespace)
    assert names(*here) == ["ctr", "cvr"]
    assert names("inferences", "-l", "team=b", *here) == ["cvr"]
    assert names("inference", "ctr", *here) == ["ctr"]
    for kind in ("modelaccesses", "featurecomputes", "computepools", "overrides", "decisions"):
        assert command_line("get", kind, "-A")["kind"]
    text = command_line.run("get", "inf", "-A", "-o", "wide").stdout
    assert re.search(rf"{models.namespace} +cvr +Stalled +0/1 .*PoolNotFound: m", text), text
    assert 'Inference "gone" not found' in command_line.refused("get", "inf", "gone", *here)
    assert 'User "eve" cannot list' in command_line.refused("get", "inf", *here, "--as", "eve")
    assert 'User "eve" cannot list' in command_line.refused("get", "inf", "-w", *here, "--as", "eve")


class Followed:
    """What a process writes, a part at a time."""

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes] | int) -> None:
        self.process = process
        self._stream = stream if isinstance(stream, int) else stream.fileno()
        self._decoder = getincrementaldecoder("utf-8")()
        self.text = ""

    def until(self, pattern: str) -> str:
        """Reads until there is a match; all that came."""
        patience = Patience(LIMIT_S)
        while not re.search(pattern, self.text, re.DOTALL):
            assert not patience.is_over(), f"not within {LIMIT_S:g} s: {pattern} in {self.text}"
            if select.select([self._stream], [], [], 0.1)[0]:
                try:
                    part = os.read(self._stream, 65_536)
                except OSError:  # a terminal whose other side has ended
                    part = b""
                assert part, f"it ended without {pattern}: {self.text}"
                self.text += self._decoder.decode(part)
        return self.text

    def lines(self) -> list[str]:
        return self.text.splitlines()


@contextmanager
def following(
    kubeconfig: Path, *arguments: str, command: str = "get", terminal: bool = False
) -> Iterator[Followed]:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", command, *arguments, "-w", "--kubeconfig", str(kubeconfig)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "160", "LINES": "40", "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        yield Followed(process, ours)
    finally:
        process.kill()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()
        os.close(ours)


def test_json_of_a_watch_is_one_document_a_line(models: Models, kubeconfig: Path) -> None:
    with following(kubeconfig, "inf", "-n", models.namespace, "-o", "json") as seen:
        seen.until("cvr.*\n")
        models.apply("ctr", replicas=3)
        seen.until("Modified.*\n")
        models.kubectl("delete", "inference", "cvr", "-n", models.namespace)
        seen.until("Deleted.*\n")
        seen.process.send_signal(signal.SIGINT)
        assert seen.process.wait(LONGEST_S) == 130
        told = [json.loads(line) for line in seen.lines()]
    assert [(each["type"], each["object"]["name"]) for each in told] == [
        ("Added", "ctr"),
        ("Added", "cvr"),
        ("Modified", "ctr"),
        ("Deleted", "cvr"),
    ]
    assert told[2]["object"]["decided"] == 3


def test_on_a_terminal_the_table_is_drawn_again(models: Models, kubeconfig: Path) -> None:
    with following(kubeconfig, "inf", "-n", models.namespace, "--sort", "state", terminal=True) as seen:
        drawn = seen.until("Stalled.*ctr")
        assert "NAME" in drawn
        models.apply("new")
        seen.until("new")
        assert seen.text.count("NAME") > 1


def test_a_status_is_shown_again_once_it_has_changed(models: Models, kubeconfig: Path) -> None:
    arguments = ("inference", "ctr", "-n", models.namespace)
    with following(kubeconfig, *arguments, "-o", "json", command="status") as seen:
        seen.until("}\n")
        models.apply("ctr", replicas=3)
        seen.until("}\n.*}\n")
        seen.process.send_signal(signal.SIGINT)
        assert seen.process.wait(LONGEST_S) == 130
        first, second = (json.loads(line) for line in seen.lines()[:2])
    assert first["object"]["name"] == second["object"]["name"] == f"{models.namespace}/ctr"
    assert first != second
    with following(kubeconfig, *arguments, command="status", terminal=True) as seen:
        assert "Inference" in seen.until(f"{models.namespace}/ctr.*{models.namespace}/ctr")
