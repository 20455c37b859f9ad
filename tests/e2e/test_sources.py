"""Where artefacts come from, and what is refused: each kind of URI on real pods."""

from __future__ import annotations

import json

import pytest

from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.errors import CommandError


def test_model_on_a_volume_claim_is_served_and_swapped(space: Space) -> None:
    space.publish("probe", 1, 2)
    _claim(space, "shelf")
    space.inference(uri="pvc://shelf/probe")
    space.access()
    space.ready()
    assert space.ask().version == "1"

    space.patch("inference", "probe", {"model": {"version": "2"}})
    space.serves("probe", 2)
    assert space.ask().version == "2"
    space.kubectl.run("delete", "inference/probe", "-n", space.namespace, "--wait=true")
    space.kubectl.run("delete", "persistentvolume", f"{space.namespace}-shelf", "--wait=false")


@pytest.mark.produces(Reason.URI_NOT_ALLOWED)
def test_host_that_nobody_listed_is_refused_and_mended_by_the_spec_alone(space: Space) -> None:
    space.publish("probe", 1)
    space.inference(uri="https://models.example.com/probe")
    wait_until(
        lambda: space.condition("inference", "probe").get("reason") == "UriNotAllowed",
        "Ready says UriNotAllowed",
        evidence=lambda: space.status("inference", "probe"),
    )
    assert "models.example.com" in space.condition("inference", "probe")["message"]

    space.inference()
    space.serves("probe", 1)


@pytest.mark.produces(Reason.FORMAT_NOT_ALLOWED)
def test_python_models_need_the_clusters_opt_in(space: Space) -> None:
    space.publish("probe", 1)
    space.inference(format="Python")
    wait_until(
        lambda: space.condition("inference", "probe").get("reason") == "FormatNotAllowed",
        "Ready says FormatNotAllowed",
        evidence=lambda: space.status("inference", "probe"),
    )


def test_broken_resource_is_refused_at_once_with_the_field_and_the_way_out(space: Space) -> None:
    for uri, words in (
        ("ftp://models/probe", "must begin with file://, pvc://, https://, s3://, gs://, oci:// or hf://"),
        (f"{space.uri('probe')}/../../etc", "must have no '..' segment"),
    ):
        with pytest.raises(CommandError, match=r"spec\.model\.uri") as caught:
            space.inference(uri=uri)
        assert words in str(caught.value)


def _claim(space: Space, name: str) -> None:
    """A claim that is bound to the folder which the test publishes into."""
    volume = f"{space.namespace}-{name}"
    size = {"storage": "1Gi"}
    documents = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadOnlyMany"],
                "hostPath": {"path": f"/models/{space.namespace}"},
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "resources": {"requests": size},
                "storageClassName": "",
                "volumeName": volume,
            },
        },
    ]
    for document in documents:
        space.kubectl.apply(json.dumps(document), space.namespace)
