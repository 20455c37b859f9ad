"""The demo's kubectl: its errors carry what is known about the object."""

import stat
from pathlib import Path

import pytest

from builders.waiting import wait_until
from tidegate_localcluster.demo.errors import CommandError, DemoError
from tidegate_localcluster.demo.kubectl import Kubectl


def a_kubectl(folder: Path, script: str) -> Kubectl:
    """A shell script in place of the program."""
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Kubectl(path, folder / "kubeconfig")


def test_the_kubeconfig_is_the_given_one(tmp_path: Path) -> None:
    assert a_kubectl(tmp_path, 'echo "$KUBECONFIG"').run("x").strip() == str(tmp_path / "kubeconfig")


def test_a_failure_repeats_kubectls_words(tmp_path: Path) -> None:
    kubectl = a_kubectl(tmp_path, "echo 'Error from server: no' >&2; exit 3")
    with pytest.raises(CommandError, match="exit status 3 and said: Error from server: no"):
        kubectl.run("get", "pods")


def test_a_command_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="timed out"):
        a_kubectl(tmp_path, "exec sleep 30").run("get", timeout_s=0.2)


def test_waiting_in_vain_shows_conditions_pods_and_events(tmp_path: Path) -> None:
    kubectl = a_kubectl(
        tmp_path,
        """
case "$1 $2" in
  "wait "*) echo "timed out waiting for the condition" >&2; exit 1 ;;
  "get inference/din") echo "  Ready=False ArtefactNotFound: no model.onnx" ;;
  "get pods") echo "NAME READY"; echo "inf-din-1 1/2" ;;
  "get events") echo "LAST SEEN"; for n in 1 2 3 4 5 6 7 8 9 10; do echo "event $n"; done ;;
esac
""",
    )
    with pytest.raises(DemoError) as caught:
        kubectl.wait("condition=Ready", ["inference/din"], "movielens", timeout_s=1)
    message = str(caught.value)
    assert "inference/din in namespace movielens did not become condition=Ready in 1 s" in message
    assert "Ready=False ArtefactNotFound: no model.onnx" in message
    assert "inf-din-1 1/2" in message
    assert "event 10" in message
    assert "event 2\n" not in message


def test_a_forward_gives_the_address_and_ends(tmp_path: Path) -> None:
    kubectl = a_kubectl(
        tmp_path,
        'echo "Forwarding from 127.0.0.1:40123 -> 8080"; echo $$ > "$(dirname "$0")/pid"; exec sleep 30',
    )
    with kubectl.forward_port("service/x", 8080, "ns") as address:
        assert address == "127.0.0.1:40123"


def test_a_forward_goes_on_however_much_kubectl_says(tmp_path: Path) -> None:
    """It writes a line for each connection, and would wait once a pipe that nobody reads is full."""
    script = """
cd "$(dirname "$0")"
echo "Forwarding from 127.0.0.1:40123 -> 8080"
yes "Handling connection for 40123" | head -n 5000
touch said
exec sleep 30
"""
    with a_kubectl(tmp_path, script).forward_port("service/x", 8080, "ns"):
        wait_until((tmp_path / "said").exists, "kubectl has said everything")


def test_a_forward_that_fails_says_why(tmp_path: Path) -> None:
    kubectl = a_kubectl(tmp_path, "echo 'error: services \"x\" not found'")
    with pytest.raises(CommandError, match="not found"), kubectl.forward_port("service/x", 8080, "ns"):
        pass


def test_a_forward_to_a_pod_that_its_kubelet_does_not_know_yet_is_tried_again(tmp_path: Path) -> None:
    script = """
cd "$(dirname "$0")"
echo x >> tries
if [ "$(wc -l < tries)" -lt 3 ]; then
  echo 'error: error upgrading connection: unable to upgrade connection: pod not found ("x_ns")'; exit 1
fi
echo "Forwarding from 127.0.0.1:40123 -> 8080"
exec sleep 30
"""
    with a_kubectl(tmp_path, script).forward_port("pod/x", 8080, "ns") as address:
        assert address == "127.0.0.1:40123"
    (tmp_path / "tries").unlink()
    at_once = a_kubectl(tmp_path, script).forward_port("pod/x", 8080, "ns", timeout_s=0.0)
    with pytest.raises(CommandError, match="pod not found"), at_once:
        pass
