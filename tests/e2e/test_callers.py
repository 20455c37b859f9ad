"""Keys on a real cluster: who gets to the model by its own counters, and where a key is never to be seen."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tritonclient.utils import InferenceServerException

from builders.waiting import LIMIT_S, LONGEST_S, wait_until
from fixtures.installed import GUARDED_NAMESPACE, Installed, Space
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.helm import NAMESPACE

ALICE: Final = "canary-alice-0123456789abcdef"
BOB: Final = "canary-bob-0123456789abcdef"

# The gateway has no curl; its admin port answers on its own loopback alone.
_CONFIG_DUMP: Final = (
    "exec 3<>/dev/tcp/127.0.0.1/9901; "
    "printf 'GET /config_dump?include_eds HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n' >&3; cat <&3"
)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A space whose Secrets the xDS servers may read, with one Inference that is ready."""

    space: Space

    def secret(self, name: str, **entries: str) -> None:
        """Writes the Secret as it is to be from now on, with the label that it needs."""
        metadata = {"name": name, "labels": {"tidegate.io/auth": "gateway"}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": entries}
        self.space.kubectl.run("delete", "secret", name, "-n", self.space.namespace, "--ignore-not-found")
        self.space.kubectl.run("create", "-n", self.space.namespace, "-f", "-", stdin=json.dumps(body))

    def access(self, name: str, auth: Mapping[str, Any]) -> None:
        """A ModelAccess of that name with `auth`."""
        route = {"name": "default", "targets": [{"inference": "probe"}], "timeout": f"{LIMIT_S:g}s"}
        self.space.apply("ModelAccess", name, {"auth": auth, "routes": [route]})

    def calls(self, access: str, times: int = 1, **headers: str) -> set[str]:
        """What becomes of calls with these headers, each on a connection of its own: `served`, or the status's name."""
        found = set[str]()
        for _ in range(times):
            try:
                self.space.ask(access, **headers)
                found.add("served")
            except InferenceServerException as error:
                found.add(str(error.status()).removeprefix("StatusCode."))
        return found

    def settles(self, access: str, outcome: str, **headers: str) -> None:
        """Waits until this is what becomes of calls, at every gateway."""
        wait_until(
            lambda: self.calls(access, 12, **headers) == {outcome},
            f"calls of {access} are {outcome}",
            evidence=lambda: (self.calls(access, 12, **headers), self.space.status("modelaccess", access)),
        )

    def closed(self, access: str, reason: Reason) -> None:
        """Waits until nobody is let in, and the access says why."""
        wait_until(
            lambda: self.space.condition("modelaccess", access).get("reason") == reason,
            f"Ready of {access} says {reason}",
            evidence=lambda: self.space.status("modelaccess", access),
        )
        self.settles(access, "UNAVAILABLE", **{"x-api-key": ALICE})
        assert self.rest(access) == 503

    def rest(self, access: str, **headers: str) -> int:
        """The status of a REST call; an answer is the model's."""
        request = urllib.request.Request(
            f"http://{self.space.installed.endpoints.gateway}/v2/models/probe/infer",
            data=json.dumps(
                {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [5.0]}]}
            ).encode(),
            headers={"x-tidegate-access": f"{self.space.namespace}/{access}", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_S) as response:
                assert json.load(response)["outputs"][0]["data"] == [1005.0]
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture(scope="module")
def guarded(installed: Installed) -> Iterator[Guarded]:
    """The namespace that the installation's values name; it stays when its objects go."""
    space = Space(installed, GUARDED_NAMESPACE)
    space.publish("probe", 1)
    space.inference()
    space.access(name="open")
    try:
        space.ready("inference/probe", "modelaccess/open")
        yield Guarded(space)
    finally:
        in_namespace = ("-n", space.namespace, "--wait=false")
        space.kubectl.run("delete", "inferences,modelaccesses", "--all", *in_namespace)
        space.kubectl.run("delete", "secrets", "-l", "tidegate.io/auth", *in_namespace)


@pytest.mark.no_rerun("a refused caller reaches a model")
def test_keys_let_in_follow_their_secret_and_refused_calls_never_reach_the_model(guarded: Guarded) -> None:
    space = guarded.space
    guarded.access("keyed", {"apiKeys": {"secret": "callers"}})
    guarded.closed("keyed", Reason.CREDENTIALS_NOT_READABLE)

    guarded.secret("callers", alice=ALICE)
    space.ready("modelaccess/keyed")
    guarded.settles("keyed", "served", **{"x-api-key": ALICE})
    assert guarded.rest("keyed", **{"x-api-key": ALICE}) == 200
    before = space.counted_at_rest("probe")
    assert guarded.calls("keyed", 20, **{"x-api-key": BOB}) == {"UNAUTHENTICATED"}
    assert guarded.calls("keyed", 20) == {"UNAUTHENTICATED"}
    assert guarded.rest("keyed", **{"x-api-key": BOB}) == 401
    assert space.counted_at_rest("probe") == before
    # The same counter does move for calls that are let in, with a key or where none is asked for.
    assert guarded.calls("keyed", 5, **{"x-api-key": ALICE}) == guarded.calls("open", 5) == {"served"}
    space.counts_to("probe", before + 10)

    guarded.secret("callers", alice=ALICE, bob=BOB)
    guarded.settles("keyed", "served", **{"x-api-key": BOB})
    _seen_nowhere(space)
    guarded.secret("callers", bob=BOB)
    guarded.settles("keyed", "UNAUTHENTICATED", **{"x-api-key": ALICE})
    assert guarded.calls("keyed", 5, **{"x-api-key": BOB}) == {"served"}

    space.kubectl.run("delete", "secret", "callers", "-n", space.namespace)
    guarded.closed("keyed", Reason.CREDENTIALS_NOT_READABLE)
    # An xDS server that misses a probe is not asked for a moment, and the other may hear of the Secret later.
    way_out = f"kubectl -n {space.namespace} label secret callers tidegate.io/auth=gateway"
    wait_until(
        lambda: way_out in space.condition("modelaccess", "keyed")["message"],
        "Ready says what lets the gateways read it",
        evidence=lambda: space.status("modelaccess", "keyed"),
    )
    assert guarded.calls("open", 5) == {"served"}


@pytest.mark.produces(Reason.CREDENTIALS_NOT_READABLE)
def test_a_namespace_that_is_not_listed_is_closed_and_says_which_value_to_set(space: Space) -> None:
    elsewhere = Guarded(space)
    elsewhere.secret("callers", alice=ALICE)
    elsewhere.access("keyed", {"apiKeys": {"secret": "callers"}})
    elsewhere.closed("keyed", Reason.CREDENTIALS_NOT_READABLE)
    assert "auth.namespaces" in space.condition("modelaccess", "keyed")["message"]


def _seen_nowhere(space: Space) -> None:
    """Looks for the keys wherever people and other processes may read, and in one place where they are."""
    installed, kubectl = space.installed, space.kubectl
    kinds = "modelaccesses,inferences,deployments,pods,configmaps,services,events"
    read = {"objects": kubectl.run("get", kinds, "-A", "-o", "yaml", timeout_s=60)}
    for component in ("xds", "controllers", "gateway", "web"):
        for pod in (one["metadata"]["name"] for one in installed.component(component)):
            read[f"log of {pod}"] = kubectl.run("logs", pod, "-n", NAMESPACE, "--tail=-1")
            if component == "gateway":
                dump = ("exec", pod, "-n", NAMESPACE, "--", "bash", "-c", _CONFIG_DUMP)
                read[f"dump of {pod}"] = kubectl.run(*dump)
                assert f"access/{space.namespace}/keyed" in read[f"dump of {pod}"]
    name = f"access/{space.namespace}/keyed"
    read["xds dump"] = installed.tidegate("xds", "dump", "--name", name)
    read["xds diff"] = installed.tidegate("xds", "diff", "--name", name)
    assert "api_key_auth" in read["xds dump"]
    # Only an xDS server has nothing to say while all goes well.
    assert [place for place, text in read.items() if not text and "tidegate-xds" not in place] == []
    marks = [form for key in (ALICE, BOB) for form in (key, base64.b64encode(key.encode()).decode())]
    assert [place for place, text in read.items() for mark in marks if mark in text] == []
    # The search can find one: the Secret itself is that of its owner.
    secret = kubectl.run("get", "secret", "callers", "-n", space.namespace, "-o", "yaml")
    assert any(mark in secret for mark in marks)
