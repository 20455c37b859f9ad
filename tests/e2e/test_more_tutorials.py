"""The tutorials after the first, typed literally on the session's cluster: a release, a pool, a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from builders.deleted_access import wait_until_unknown
from documented.pages import ROOT, Block, name
from documented.tutorial import MismatchError, run, steps
from fixtures.cluster import POOL_NODE
from fixtures.installed import Installed, Space
from fixtures.installed_pool import the_pool_node
from tidegate_localcluster.demo.platforms import NATS_IMAGE
from tidegate_localcluster.ports import find_unused_port

TUTORIALS = ROOT / "docs" / "tutorial"
TIMEOUT_S = 500.0
TOLERATED = "  tolerations: [{key: e2e/pools, operator: Exists, effect: NoSchedule}]\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that is this repository to whoever types in it, and keeps what they save."""
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def _read_steps(installed: Installed, page: str, replaced: Mapping[str, str]) -> Sequence[Block]:
    """The steps of a page, with what differs between the demo's cluster and the session's replaced."""
    path = TUTORIALS / f"{page}.md"
    text = path.read_text()
    state_dir = f"--state-dir {installed.cluster.files.path}"
    elsewhere = {
        f"tidegate local {command}": f"tidegate local {command} {state_dir}"
        for command in ("kubectl", "status")
    }
    for documented, typed in {**elsewhere, **replaced}.items():
        assert documented in text
        text = text.replace(documented, typed)
    return steps(text, name(path))


def _type_page(
    installed: Installed, page: str, checkout: Path, replaced: Mapping[str, str] | None = None
) -> None:
    """Type a tutorial to its end, and delete its namespace whatever comes of it."""
    typed = _read_steps(installed, page, replaced or {})
    try:
        run(typed, checkout, {"KUBECONFIG": ""}, timeout_s=TIMEOUT_S)
    finally:
        namespaces = (page, f"e2e-{page}")
        installed.kubectl.run("delete", "namespace", *namespaces, "--ignore-not-found", "--wait=false")


def test_who_types_the_tutorial_of_releases_sees_a_bad_model_taken_back(
    installed: Installed, checkout: Path
) -> None:
    _type_page(installed, "first-release", checkout)
    # Its objects are gone: the question that had an answer has none now.
    wait_until_unknown(installed.endpoints.gateway, "first-release/double", "double")


def test_who_types_the_tutorial_of_pools_has_a_placed_model(space: Space, checkout: Path) -> None:
    installed = space.installed
    on_the_pool_node = {
        "$(k get nodes -o jsonpath='{.items[0].metadata.name}')": POOL_NODE,
        "  slice:\n": f"{TOLERATED}  slice:\n",
        # Other tests of pools wait while pods of such a namespace are on the node.
        "first-pool": "e2e-first-pool",
    }
    with the_pool_node(space):
        try:
            _type_page(installed, "first-pool", checkout, on_the_pool_node)
        finally:
            installed.kubectl.run("delete", "computepool", "e2e-first-pool", "--ignore-not-found")
            installed.kubectl.run("label", "node", POOL_NODE, "tutorial-")
    assert installed.api.get("/apis/tidegate.io/v1alpha1/computepools/e2e-first-pool") is None


def test_who_types_the_tutorial_of_streams_reads_a_result_of_each_message(
    space: Space, checkout: Path
) -> None:
    broker = (ROOT / "examples" / "movielens" / "nats.yaml").read_text()
    space.kubectl.apply(broker.replace(NATS_IMAGE, space.installed.site.nats_image), space.namespace)
    space.kubectl.wait("condition=Available", ("deployment/movielens-nats",), space.namespace, 120)
    port = find_unused_port("127.0.0.1")
    elsewhere = {
        "-n movielens service/movielens-nats 4222:4222": f"-n {space.namespace} service/movielens-nats {port}:4222",
        "nats://127.0.0.1:4222": f"nats://127.0.0.1:{port}",
        "movielens-nats.movielens:4222": f"movielens-nats.{space.namespace}:4222",
    }
    _type_page(space.installed, "first-stream", checkout, elsewhere)
    # The streams are removed: who sends more work is refused.
    with space.kubectl.forward_port("service/movielens-nats", 4222, space.namespace) as address:
        page = _read_steps(space.installed, "first-stream", {"nats://127.0.0.1:4222": f"nats://{address}"})
        sending = [block for block in page if block.file == "streams.py" or "streams.py send" in block.text]
        with pytest.raises(MismatchError, match="NoStreamResponse"):
            run(sending, checkout, {}, timeout_s=100)
