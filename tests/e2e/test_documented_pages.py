"""A stranger's path: what how-to pages and runbooks have people type is typed, literally, where the objects are that they tell of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import yaml

from builders.waiting import wait_until
from documented.typed import problem, typed
from fixtures.installed import Installed, Space, a_space
from fixtures.installed_pool import OwnPool, an_own_pool
from tidegate_localcluster.node import node_name

pytestmark = [
    pytest.mark.slow(
        "90 lines typed on a cluster; their options are checked in unit/ and by kubectl and Helm"
    ),
    pytest.mark.alone("types what changes the installation"),
]

TYPED: Final = typed()


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody with kubectl and tidegate on their PATH, in a folder of their own."""

    pool: OwnPool
    folder: Path
    environment: Mapping[str, str]
    known: dict[str, str] = field(default_factory=dict[str, str])
    """What came of the lines that were typed before: many pages begin with the same."""

    def types(self, text: str) -> str:
        """What is broken about a line; empty where nothing is."""
        line = self._here(text)
        if line not in self.known:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            self.known[line] = problem(line, done.returncode, done.stdout, done.stderr)
        return self.known[line]

    def _here(self, text: str) -> str:
        """The line with this installation's own names in the place of those that a page makes up."""
        for made_up, own in self._names(text).items():
            text = text.replace(made_up, own)
        return text

    def _names(self, text: str) -> Mapping[str, str]:
        found = {
            "worker-1 worker-2": node_name(0),
            " NODE": f" {node_name(0)}",
            " NAME ": " ctr ",
            "gpu-a-1042": self.pool.decisions()[0]["metadata"]["name"],
            "gpu-a": self.pool.name,
            "3f9a 81c2": "previous current",
        }
        if " POD" in text:
            found[" POD"] = f" {self.pool.space.installed.component('gateway')[0]['metadata']['name']}"
        return found


def overrides(pool: OwnPool) -> list[str]:
    """Those of the pool and of its models."""
    found = pool.space.installed.api.items("/apis/tidegate.io/v1alpha1/computeoverrides")
    targets = {each["metadata"]["name"]: each["spec"]["target"] for each in found}
    return [
        name
        for name, target in targets.items()
        if target.get("namespace") == pool.space.namespace or target["name"] == pool.name
    ]


def arrange(space: Space, pool: OwnPool) -> None:
    """What the pages tell of: models ctr, ctr-v3, embed and din in namespace ads, and something that was decided."""
    for name in ("ctr", "din", "ctr-v3"):
        space.publish(name, 1, 2)
    for name in ("ctr", "din"):
        space.inference(name)
        space.access((name, 100), name=name)
    for name, tier, least in (("ctr-v3", "realtime", 1), ("embed", "offline", 0)):
        scaling = {"minReplicas": least, "maxReplicas": 12}
        space.apply("Inference", name, pool.model("ctr-v3", 100, tier=tier, scaling=scaling))
    space.ready(*(f"{kind}/{name}" for kind in ("inference", "modelaccess") for name in ("ctr", "din")))
    space.ready("inference/ctr-v3")
    floor = ("--floor", "2", "--for", "1h", "--reason", "there is to be something to decide")
    space.installed.tidegate("override", "ads/ctr-v3", *floor)
    wait_until(lambda: bool(pool.decisions()), "something is decided", evidence=pool.status)


@pytest.fixture(scope="module")
def reader(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Who may do all, in a cluster where `ads` has what the pages tell of."""
    kubectl, folder = installed.kubectl, tmp_path_factory.mktemp("reader")
    with a_space(installed, "ads") as space, an_own_pool(space, "cpu-a", "RecommendOnly") as pool:
        try:
            arrange(space, pool)
            yield Reader(pool, folder, an_environment(installed, folder))
        finally:
            kubectl.run("label", "node", node_name(0), "pool-")  # docs/how-to/pool-compute.md put it there
            for name in overrides(pool):
                kubectl.run("delete", "computeoverride", name)


def an_environment(installed: Installed, folder: Path) -> dict[str, str]:
    """A home folder, a kubeconfig whose namespace is ads, the programs, and the files that lines hand over."""
    config = yaml.safe_load(installed.cluster.files.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = "ads"
    (folder / "config").write_text(yaml.safe_dump(config))
    files = {
        "access.yaml": "modelaccess/ctr",
        "deploy/access.yaml": "modelaccess/ctr",
        "deploy/ctr.yaml": "inference/ctr",
        "examples/movielens/inference.yaml": "inference/din",
    }
    for name, one in files.items():
        found = json.loads(installed.kubectl.run("get", one, "--namespace=ads", "--output=json"))
        body = {key: found[key] for key in ("apiVersion", "kind", "spec")}
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({**body, "metadata": {"name": one.partition("/")[2]}}))
    programs = (Path(sys.executable).parent, installed.cluster.plan().binaries["kubectl"].parent)
    return {
        **os.environ,
        "HOME": str(folder),
        "KUBECONFIG": str(folder / "config"),
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
    }


@pytest.mark.parametrize("page", TYPED)
def test_what_a_page_has_people_type_does_what_they_expect(reader: Reader, page: str) -> None:
    broken = {
        f"{line.where}: {line.text}": found for line in TYPED[page] if (found := reader.types(line.text))
    }
    assert broken == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tidegate why nobody -n ads", "there is no Inference nobody"),
        ("kubectl get inference nobody -o jsonpath='{.status.failure}'", "NotFound"),
        ("kubectl logs -n tidegate-system deployment/tidegate-nobody | grep -i solver", "not found"),
        ("tidegate analyze -n ads -f nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_a_line_that_tells_of_what_is_not_there_is_found(reader: Reader, text: str, said: str) -> None:
    assert said in reader.types(text)
