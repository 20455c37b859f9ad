"""A model that namespaces share: with a real API server, a real Envoy and the model's own counts of requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.waiting import eventually
from fixtures.control_plane import Kubectl, a_namespace, wait_for_account
from fixtures.envoy import Client, Gateway
from tidegate.api.reasons import Reason
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.resources.names import INFERENCE_LABEL, MANAGED_BY, MANAGED_SELECTOR, MANAGER
from tidegate.resources.serving_pod import GRPC_PORT, HTTP_PORT
from tidegate.runtime.caches import start_watches, wait_until_synced

# The pods need addresses of their own, since their ports are fixed.
SHARED, OWN = "127.0.0.88", "127.0.0.89"


@asynccontextmanager
async def following(gateway: Gateway, kubeconfig: Path) -> AsyncIterator[Client]:
    """A gateway that runs what the API server has, from now on, as `tidegate xds serve` wires it."""
    inputs, changed = RoutingInputs(), asyncio.Event()
    inputs.subscribe(changed.set)
    plane = gateway.control_plane
    settings = ClientSettings(field_manager="tidegate-xds", user_agent="tidegate-xds")

    async def publish(api: KubeClient) -> None:
        async with asyncio.TaskGroup() as watches:
            start_watches(watches, api, inputs.own_stores)
            start_watches(watches, api, [inputs.pods], selector=MANAGED_SELECTOR)
            await wait_until_synced(inputs.required_stores)
            while True:
                changed.clear()
                inputs.feed_changes(plane.routing)
                plane.cache.set(plane.builder.apply_change(plane.routing.take_change()))
                await changed.wait()

    client = await gateway.start()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig) as api:
        publishing = asyncio.create_task(publish(api))
        try:
            yield client
        finally:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing


async def share(kubectl: Kubectl, namespace: str, *others: str) -> None:
    """Share the model of a namespace with these others and no more."""
    change = f"tidegate.io/shared-with={','.join(others)}"
    named = ("inference", "ctr", "-n", namespace, "--overwrite")
    await asyncio.to_thread(kubectl, "annotate", *named, change)


def serve(kubectl: Kubectl, namespace: str, name: str, address: str) -> None:
    """An Inference with one pod that is ready, as far as the API server knows."""
    body = inference_body(name, namespace, replicas=0, tier="nearline", model={"name": "ctr"})
    kubectl.apply({**body, "metadata": {"name": name, "namespace": namespace}}, namespace=namespace)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {MANAGED_BY: MANAGER, INFERENCE_LABEL: name}},
        "spec": {"containers": [{"name": "triton", "image": "none"}]},
    }
    wait_for_account(kubectl, namespace)
    kubectl.apply(pod, namespace=namespace)
    kubectl.report_pod(name, namespace, address=address)


def call(kubectl: Kubectl, namespace: str, *targets: str, **fields: Any) -> None:
    """A ModelAccess of a namespace."""
    body = model_access_body("home", namespace, routes=[a_route("default", *targets, **fields)])
    kubectl.apply({**body, "metadata": {"name": "home", "namespace": namespace}}, namespace=namespace)


async def find_answer(client: Client, namespace: str) -> str:
    try:
        return await client.infer(metadata=(("x-tidegate-access", f"{namespace}/home"),))
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def is_answered(client: Client, namespace: str, expected: str) -> bool:
    return await find_answer(client, namespace) == expected


async def find_ready(kubectl: Kubectl, namespace: str, reason: Reason) -> str | None:
    """The message of Ready, once it has this reason."""
    found = await asyncio.to_thread(kubectl.json, "get", "modelaccess", "home", "-n", namespace)
    conditions = found.get("status", {}).get("conditions", [])
    return next(
        (item["message"] for item in conditions if (item["type"], item["reason"]) == ("Ready", reason)), None
    )


@pytest.mark.usefixtures("controllers")
async def test_requests_reach_a_model_of_another_namespace_while_it_is_shared(
    gateway: Gateway, kubectl: Kubectl, kubeconfig: Path, namespace: str
) -> None:
    with a_namespace(kubectl, "sharing-models") as shop, a_namespace(kubectl, "strangers") as stranger:
        ports = GRPC_PORT, HTTP_PORT
        shared = await gateway.upstream("shared", SHARED, ports)
        own = await gateway.upstream("own", OWN, ports)
        serve(kubectl, shop, "ctr", SHARED)
        serve(kubectl, namespace, "small", OWN)
        call(kubectl, namespace, f"{shop}/ctr", fallback={"inference": "small"})
        call(kubectl, stranger, f"{shop}/ctr")
        async with following(gateway, kubeconfig) as client:
            answers = partial(is_answered, client)
            await eventually(lambda: answers(namespace, "own"), "the fallback answers")
            assert shared.inferences == 0
            message = await eventually(
                lambda: find_ready(kubectl, namespace, Reason.TARGET_NOT_FOUND),
                "it is refused",
            )
            assert message.endswith(
                f"with kubectl annotate inference ctr -n {shop} tidegate.io/shared-with={namespace}"
            )

            await share(kubectl, shop, namespace)
            await eventually(lambda: answers(namespace, "shared"), "the model answers")
            # Its own counts of the model and the gateway's under the model's name are those of what was sent.
            before = shared.inferences, own.inferences
            assert [await find_answer(client, namespace) for _ in range(10)] == ["shared"] * 10
            assert (shared.inferences - before[0], own.inferences - before[1]) == (10, 0)
            counted = f"cluster.inference/{shop}/ctr/grpc.upstream_rq_total"

            async def count_all() -> bool:
                return await gateway.envoy.stat(counted) == shared.inferences

            await eventually(count_all, "the gateway counts them")
            # A third namespace does not get in, whatever the others may.
            assert await find_answer(client, stranger) == "UNAVAILABLE"

            await share(kubectl, shop, stranger)
            await eventually(lambda: answers(namespace, "own"), "the fallback answers again")
            withdrawn = shared.inferences
            assert [await find_answer(client, namespace) for _ in range(10)] == ["own"] * 10
            assert shared.inferences == withdrawn
            await eventually(lambda: answers(stranger, "shared"), "the other gets in")

            await share(kubectl, shop, namespace, stranger)
            await eventually(lambda: answers(namespace, "shared"), "it is given again")
            assert await find_answer(client, stranger) == "shared"
