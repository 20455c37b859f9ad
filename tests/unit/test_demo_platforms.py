"""A cluster of the user's own: what the demo must be told, and what it says when it is not."""

from typing import Any

import pytest
import yaml

from builders.movielens import EXAMPLE
from movielens_din.stream import STREAM, SUBJECT
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.platforms import NATS_IMAGE, OwnClusterSettings
from tidegate_localcluster.demo.scenario import BROKER, BROKER_PORT

COMPLETE = {
    "TIDEGATE_IMAGE_OPERATOR": "r/operator:1",
    "TIDEGATE_IMAGE_DATAPLANE": "r/dataplane:1",
    "TIDEGATE_IMAGE_TRITON": "r/triton:1",
    "TIDEGATE_IMAGE_GATEWAY": "r/gateway:1",
    "TIDEGATE_DEMO_MODELS_DIR": "/srv/models",
    "TIDEGATE_DEMO_MODELS_URI": "pvc://models/",
}


def test_images_go_under_the_names_of_the_charts_values() -> None:
    settings = OwnClusterSettings.from_environment(COMPLETE)
    assert settings.images["triton"] == "r/triton:1"
    assert settings.models_uri == "pvc://models"


@pytest.mark.parametrize("name", COMPLETE)
def test_what_is_missing_is_named(name: str) -> None:
    incomplete = {key: value for key, value in COMPLETE.items() if key != name}
    with pytest.raises(DemoError, match=rf"also needs {name} \(docs/how-to"):
        OwnClusterSettings.from_environment(incomplete)


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
