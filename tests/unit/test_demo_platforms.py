"""A cluster of the user's own: what the demo must be told, and what it says when it is not."""

from typing import Any

import pytest
import yaml

from builders.movielens import EXAMPLE
from documented.pages import ROOT
from movielens_din.stream import STREAM, SUBJECT
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.object_store import (
    BUCKET,
    EXAMPLE_IMAGE,
    EXAMPLE_SECRET,
    OBJECT_STORE,
    PORT,
    read_manifest,
)
from tidegate_localcluster.demo.platforms import NATS_IMAGE, OwnClusterSettings
from tidegate_localcluster.demo.scenario import BROKER, BROKER_PORT
from tidegate_localcluster.image_parts import read_project_version


def test_images_come_from_the_registry_with_the_version_as_their_tag() -> None:
    settings = OwnClusterSettings.from_environment({"REGISTRY": "r.example.com/tidegate/"}, "0.1.0")
    assert settings.image_reference("triton-cpu") == "r.example.com/tidegate/triton-cpu:0.1.0"
    tagged = OwnClusterSettings.from_environment({"REGISTRY": "r", "TAG": "main"}, "0.1.0")
    assert tagged.image_reference("nats") == "r/nats:main"


def test_without_a_registry_the_demo_names_what_it_needs() -> None:
    with pytest.raises(
        DemoError, match=r"also needs REGISTRY, which `make images` has pushed to \(docs/how-to"
    ):
        OwnClusterSettings.from_environment({"KUBECONFIG": "config"}, "0.1.0")


def test_the_object_store_of_the_example_is_the_one_that_the_demo_replaces() -> None:
    manifest = (EXAMPLE.parent / "first-model" / "object-store.yaml").read_text()
    assert manifest.count(EXAMPLE_IMAGE) == manifest.count(EXAMPLE_SECRET) == 1
    # `make images` pushes under this tag, and readers replace the registry alone.
    assert f"tidegate.local/{OBJECT_STORE}:{read_project_version(ROOT)}" == EXAMPLE_IMAGE
    objects = {body["kind"]: body for body in yaml.safe_load_all(manifest) if body}
    assert objects["Deployment"]["metadata"]["name"] == objects["Service"]["metadata"]["name"] == OBJECT_STORE
    assert objects["Secret"]["stringData"]["AWS_ENDPOINT_URL"] == f"http://{OBJECT_STORE}:{PORT}"
    # Its name is not the one that other models of the namespace read.
    model = (EXAMPLE.parent / "first-model" / "model.yaml").read_text()
    inference = next(body for body in yaml.safe_load_all(model) if body)
    assert (
        inference["spec"]["model"]["secretName"]
        == objects["Secret"]["metadata"]["name"]
        != "tidegate-storage"
    )
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert BUCKET in pod["containers"][0]["args"]


def test_the_demo_replaces_the_image_and_the_secret_of_the_example() -> None:
    bodies = [body for body in yaml.safe_load_all(read_manifest("r.example.com/store:1")) if body]
    (secret,) = [body for body in bodies if body["kind"] == "Secret"]
    (deployment,) = [body for body in bodies if body["kind"] == "Deployment"]
    assert secret["metadata"]["name"] == "tidegate-storage"
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "r.example.com/store:1"


def test_the_image_of_the_broker_is_the_one_that_a_platform_replaces() -> None:
    deployment, _ = read_broker()
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert [container["image"] for container in containers] == [NATS_IMAGE]


def test_the_broker_and_its_stream_have_the_example_in_their_names() -> None:
    deployment, service = read_broker()
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == BROKER == "movielens-nats"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    sources = yaml.safe_load((EXAMPLE / "feature-compute.yaml").read_text())["spec"]["sources"]
    assert [source["stream"]["nats"] for source in sources if "stream" in source] == [
        {
            "url": f"nats://{BROKER}:{BROKER_PORT}",
            "stream": "MOVIELENS_RATINGS",
            "subject": "movielens.ratings",
        }
    ]
    assert (STREAM, SUBJECT) == ("MOVIELENS_RATINGS", "movielens.ratings")


def test_the_broker_runs_in_a_restricted_namespace() -> None:
    pod = read_broker()[0]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    store = container["args"][container["args"].index("--store_dir") + 1]
    (volume,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == store]
    assert [entry["name"] for entry in pod["volumes"] if "emptyDir" in entry] == [volume]


def read_broker() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLE / "nats.yaml").read_text()))
