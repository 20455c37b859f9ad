"""The tutorials after the first, typed literally on the session's cluster: a release, a pool, a stream."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from documented.pages import ROOT, Block, name
from documented.tutorial import MismatchError, run, steps
from fixtures.cluster import POOL_NODE
from fixtures.installed import Installed, Space
from tidegate_localcluster.demo.platforms import NATS_IMAGE

TUTORIALS = ROOT / "docs" / "tutorial"
TIMEOUT_S = 500.0
TOLERATED = "  tolerations: [{key: e2e/pools, operator: Exists, effect: NoSchedule}]\n"


@pytest.fixture
def home(installed: Installed) -> Iterator[Path]:
    """A TIDEGATE_HOME whose default cluster is the session's; paths of its sockets may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="tutorial-"))
    (folder / "clusters").mkdir()
    (folder / "clusters" / "default").symlink_to(installed.cluster.files.path)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that is this repository to whoever types in it, and keeps what they save."""
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def _read_steps(page: Path, replaced: Mapping[str, str]) -> Sequence[Block]:
    """The steps of a page, with what differs between the demo's cluster and the session's replaced."""
    text = page.read_text()
    for documented, typed in replaced.items():
        assert documented in text
        text = text.replace(documented, typed)
    return steps(text, name(page))


def _type_page(
    installed: Installed, page: str, home: Path, checkout: Path, replaced: Mapping[str, str] | None = None
) -> Sequence[Block]:
    """Type a tutorial to its end, and delete its namespace whatever comes of it; return its steps."""
    typed = _read_steps(TUTORIALS / f"{page}.md", replaced or {})
    try:
        run(typed, checkout, {"TIDEGATE_HOME": str(home), "KUBECONFIG": ""}, timeout_s=TIMEOUT_S)
    finally:
        installed.kubectl.run("delete", "namespace", page, "--ignore-not-found", "--wait=false")
    return typed


def test_who_types_the_tutorial_of_releases_sees_a_bad_model_taken_back(
    installed: Installed, home: Path, checkout: Path
) -> None:
    typed = _type_page(installed, "first-release", home, checkout)
    # Its objects are gone: the question that had an answer has none now.
    asking = [block for block in typed if "GATEWAY=" in block.text or "curl" in block.text]
    without_load = [block for block in asking if "ask_often" not in block.text]
    environment = {
        "TIDEGATE_HOME": str(home),
        "KUBECONFIG": "",
        "GATEWAY": f"http://{installed.endpoints.gateway}",
    }
    with pytest.raises(MismatchError, match="first-release"):
        run(without_load, checkout, environment, timeout_s=100)


def test_who_types_the_tutorial_of_pools_has_a_placed_model(space: Space, home: Path, checkout: Path) -> None:
    installed = space.installed
    space.has_node(POOL_NODE)
    on_the_pool_node = {
        "$(k get nodes -o jsonpath='{.items[0].metadata.name}')": POOL_NODE,
        "  slice:\n": f"{TOLERATED}  slice:\n",
    }
    try:
        _type_page(installed, "first-pool", home, checkout, on_the_pool_node)
    finally:
        installed.kubectl.run("delete", "computepool", "first-pool", "--ignore-not-found")
        installed.kubectl.run("label", "node", POOL_NODE, "tutorial-")
    assert installed.api.get("/apis/tidegate.io/v1alpha1/computepools/first-pool") is None


def test_who_types_the_tutorial_of_streams_reads_a_result_of_each_message(
    space: Space, home: Path, checkout: Path
) -> None:
    broker = (ROOT / "examples" / "movielens" / "nats.yaml").read_text()
    space.kubectl.apply(broker.replace(NATS_IMAGE, space.installed.site.nats_image), space.namespace)
    space.kubectl.wait("condition=Available", ("deployment/movielens-nats",), space.namespace, 120)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    elsewhere = {
        "-n movielens service/movielens-nats 4222:4222": f"-n {space.namespace} service/movielens-nats {port}:4222",
        "nats://127.0.0.1:4222": f"nats://127.0.0.1:{port}",
        "movielens-nats.movielens:4222": f"movielens-nats.{space.namespace}:4222",
    }
    _type_page(space.installed, "first-stream", home, checkout, elsewhere)
    # The streams are removed: who sends more work is refused.
    with space.kubectl.forward_port("service/movielens-nats", 4222, space.namespace) as address:
        page = _read_steps(TUTORIALS / "first-stream.md", {"nats://127.0.0.1:4222": f"nats://{address}"})
        sending = [block for block in page if block.file == "streams.py" or "streams.py send" in block.text]
        with pytest.raises(MismatchError, match="NotFound"):
            run(sending, checkout, {}, timeout_s=100)
