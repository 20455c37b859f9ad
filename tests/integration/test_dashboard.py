"""The dashboard on a real API server: who comes in, what is done in whose name, and what open pages cost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from builders.inference import inference_body
from builders.metrics_page import listed, metric, shown
from builders.waiting import LONGEST_S, eventually, wait_until
from fixtures.allocated import Allocated, looks_again
from fixtures.auth_proxy import an_authenticating_proxy
from fixtures.control_plane import Kubectl, may
from fixtures.processes import Running
from fixtures.web_process import (
    ALL_KINDS,
    READER,
    STEERER,
    WebProcess,
    grant,
    web_process,
    web_rules,
    with_token,
)

LISTS_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


@pytest.fixture
def steerer(dashboard_process: WebProcess) -> Iterator[str]:
    """The token of somebody who may override."""
    yield dashboard_process.visitor("sre", STEERER)
    dashboard_process.forget("sre")


@pytest.fixture
def reader(dashboard_process: WebProcess) -> Iterator[str]:
    """The token of somebody who may only look."""
    yield dashboard_process.visitor("looks", READER)
    dashboard_process.forget("looks")


@contextmanager
def signed_in(web: WebProcess, token: str) -> Iterator[httpx.Client]:
    """A browser that has typed its token."""
    with web.browser() as browser:
        answer = browser.post("/sign-in", data={"token": token, "next": "/overrides"})
        assert answer.status_code == 200, answer.text
        assert answer.url.path == "/overrides"
        yield browser


def test_the_page_of_metrics_shows_what_the_reference_lists_and_counts_what_was_answered(
    dashboard_process: WebProcess,
) -> None:
    before = metric(dashboard_process.running.metrics(), "tidegate_web_requests_total", status="200")
    with dashboard_process.browser() as browser:
        browser.get("/sign-in")
        browser.get("/nowhere")
    page = dashboard_process.running.metrics()
    assert shown(page) == listed("Web")
    assert metric(page, "tidegate_web_requests_total", status="200") == before + 1
    assert metric(page, "tidegate_api_writes_total") == 0  # it asks who somebody is, which is no write


def test_somebody_signs_in_overrides_and_is_seen_by_kubectl(
    allocated: Allocated, controllers: Running, dashboard_process: WebProcess, steerer: str
) -> None:
    allocated.mode("Auto")
    allocated.model("batch", 0, 3, tier="offline")
    allocated.settled(batch=3)
    looks_again(controllers, allocated.pool)
    with dashboard_process.api(steerer) as api:
        more = {"inference": f"{allocated.pools.namespace}/batch", "maxReplicas": 4, "demand": 4}
        then = api.post("/api/v1/plan", json={"pool": allocated.pool, "inferences": [more]})
        [move] = then.json()["decision"]["moves"]
        assert (move["from"], move["to"]) == (3, 4)
    with signed_in(dashboard_process, steerer) as browser:
        page = browser.get(f"/inferences/{allocated.pools.namespace}/batch")
        assert page.status_code == 200
        [csrf] = set(CSRF.findall(page.text))
        form = {
            "csrf": csrf,
            "kind": "Inference",
            "namespace": allocated.pools.namespace,
            "name": "batch",
            "action": "pin",
            "replicas": "1",
            "reason": "the sale",
            "lasting": "30m",
        }
        made = browser.post("/overrides", data=form)
        assert made.status_code == 200, made.text

        [override] = allocated.overrides()
        assert (override["spec"]["pin"], override["spec"]["reason"]) == ({"replicas": 1}, "the sale")
        allocated.settled(batch=1)
        newest = allocated.decisions()[0]["metadata"]["name"]
        wait_until(lambda: newest in browser.get("/decisions").text, what=f"the decision log shows {newest}")
        ended = browser.post(f"/overrides/{override['metadata']['name']}/end", data={"csrf": csrf})
        assert ended.status_code == 200
    assert allocated.overrides() == []


def test_the_api_server_itself_decides_in_the_visitors_name(
    allocated: Allocated, dashboard_process: WebProcess, kubectl: Kubectl
) -> None:
    """Even where the dashboard's own look at rights is outdated, the write is the visitor's, and refused as theirs."""
    token = dashboard_process.visitor("soon-gone", STEERER)
    try:
        body = {
            "kind": "ComputePool",
            "name": allocated.pool,
            "action": "hold",
            "reason": "a test",
            "lasting": "1h",
        }
        with dashboard_process.api(token) as api:
            assert api.get("/api/v1/me").json()["mayOverride"] is True
            kubectl("delete", "clusterrolebinding", "soon-gone")

            def refused() -> bool:
                answer = api.post("/api/v1/overrides", json=body)
                if answer.status_code == 200:
                    for each in allocated.overrides():
                        kubectl.run("delete", "computeoverride", each["metadata"]["name"])
                    return False
                assert answer.status_code == 403
                return "soon-gone" in answer.json()["detail"]

            wait_until(refused, what="the write is refused")
    finally:
        dashboard_process.forget("soon-gone")


def test_every_node_of_a_pool_is_shown_to_who_may_list_nodes(
    allocated: Allocated, controllers: Running, dashboard_process: WebProcess, kubectl: Kubectl, reader: str
) -> None:
    allocated.model("batch", 0, 3, tier="offline")
    idle, closed = allocated.pools.node("idle", cpu="8"), allocated.pools.node("closed", cpu="8")
    kubectl("cordon", closed)
    token = dashboard_process.visitor("sees-nodes", [*READER, LISTS_NODES])
    path = f"/api/v1/computepools/{allocated.pool}/power"
    try:
        with dashboard_process.api(token) as api, dashboard_process.api(reader) as other:

            def nodes() -> dict[str, dict[str, object]]:
                return {each["node"]: each for each in api.get(path).json()["nodes"] if each["node"]}

            def agrees() -> bool:
                """With the controllers, who count them for the pool's status."""
                slices, found = allocated.pools.status(allocated.pool).get("slices", {}), nodes().values()
                totals = [each["total"] for each in found if isinstance(each["total"], int)]
                free = [each["free"] for each in found if isinstance(each["free"], int)]
                return {idle, closed} <= nodes().keys() and (sum(totals), sum(free)) == (
                    slices.get("total"),
                    slices.get("free"),
                )

            wait_until(
                # A node has a taint from its birth until Kubernetes has seen that it is ready.
                lambda: (
                    agrees() and (nodes()[idle]["fault"], nodes()[closed]["fault"]) == ("", "is cordoned")
                ),
                what="nodes are shown as the pool's status counts them",
            )
            shown = nodes()
            assert (shown[idle]["used"], shown[idle]["fault"]) == (0, "")
            assert (shown[closed]["free"], shown[closed]["fault"]) == (0, "is cordoned")
            assert not {idle, closed} & {each["node"] for each in other.get(path).json()["nodes"]}
            kubectl("uncordon", closed)
            wait_until(
                lambda: nodes()[closed]["fault"] == "" and agrees(),
                what="the node takes pods again",
            )
    finally:
        dashboard_process.forget("sees-nodes")
    page = controllers.metrics()
    assert f'tidegate_pool_tier_slices{{pool="{allocated.pool}",tier="offline"}}' in page


async def test_open_pages_watch_no_more_than_one_and_all_are_told_of_a_change(
    dashboard_process: WebProcess, reader: str, kubectl: Kubectl, namespace: str
) -> None:
    headers = {"authorization": f"Bearer {reader}"}
    limits = httpx.Limits(max_connections=None)
    topic = f"inferences/{namespace}/ctr"
    async with (
        httpx.AsyncClient(
            base_url=dashboard_process.url, headers=headers, timeout=60, limits=limits, trust_env=False
        ) as client,
        AsyncExitStack() as pages,
    ):
        opened: list[AsyncIterator[str]] = []

        async def open_pages(count: int) -> None:
            for _ in range(count):
                page = client.stream("GET", "/api/v1/events", params={"topic": topic})
                answer = await pages.enter_async_context(page)
                assert answer.status_code == 200
                opened.append(answer.aiter_lines())
                assert await anext(opened[-1]) == ": listening"

        await open_pages(1)
        one = watches(kubectl)
        await open_pages(49)

        def no_more() -> bool:
            """One of each kind may have been between two watches just then, and Kubernetes' garbage collector begins its own."""
            return all(count <= one[kind] + 2 for kind, count in watches(kubectl).items())

        await eventually(no_more, what="no more watches than for one page")
        assert watches(kubectl)["inferences"] >= 1

        async def is_told(lines: AsyncIterator[str]) -> bool:
            async for line in lines:  # which end by themselves
                if line == f"event: {topic}":
                    return True
            return False

        kubectl.apply({**inference_body(), "metadata": {"name": "ctr"}}, namespace=namespace)
        assert all(await asyncio.gather(*map(is_told, opened)))


def watches(kubectl: Kubectl) -> dict[str, int]:
    """Open watches of our kinds, as the API server counts them."""
    found = re.findall(
        r'^apiserver_longrunning_requests\{[^}]*resource="(\w+)"[^}]*verb="WATCH"[^}]*\} (\S+)$',
        kubectl("get", "--raw", "/metrics"),
        re.MULTILINE,
    )
    counted: Counter[str] = Counter()
    for resource, count in found:  # one line for each scope
        counted[resource] += int(float(count))
    return {resource: counted[resource] for resource in ALL_KINDS}


@pytest.mark.usefixtures("controllers")
def test_a_proxy_says_who_somebody_is_and_nobody_else_does(
    allocated: Allocated, kubectl: Kubectl, tmp_path: Path
) -> None:
    rules = [{"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}]
    secret = tmp_path / "secret"
    secret.write_text("known to the proxy alone\n")
    folder = tmp_path / "web"
    folder.mkdir()
    with (
        web_process(kubectl, folder, web_auth="proxy", web_proxy_secret_file=str(secret)) as web,
        web.browser() as browser,
    ):
        kubectl(
            "create", "clusterrole", "pool-readers", "--verb=get,list", "--resource=computepools.tidegate.io"
        )
        kubectl("create", "clusterrolebinding", "pool-readers", "--clusterrole=pool-readers", "--group=sre")
        grant(kubectl, "tidegate-web", [*rules, *web_rules()])
        said = {"x-forwarded-user": "ann", "x-forwarded-groups": "sre"}
        proven = {**said, "x-tidegate-proxy-secret": "known to the proxy alone"}
        try:
            wait_until(
                lambda: browser.get("/api/v1/rows/computepools", headers=proven).status_code == 200,
                what="ann may list pools as one of group sre",
            )
            rows = browser.get("/api/v1/rows/computepools", headers=proven).json()
            assert allocated.pool in [row["name"] for row in rows["items"]]
            assert browser.get("/api/v1/rows/inferences", headers=proven).status_code == 403
            assert browser.get("/api/v1/me", headers=said).status_code == 401
            forged = {**said, "x-tidegate-proxy-secret": "guessed"}
            assert browser.get("/api/v1/me", headers=forged).status_code == 401
            masters = {**proven, "x-forwarded-groups": "system:masters"}
            assert browser.get("/api/v1/me", headers=masters).json()["groups"] == ["system:authenticated"]
            cluster = {**proven, "x-forwarded-user": "system:admin"}
            assert browser.get("/api/v1/me", headers=cluster).status_code == 401
            behind_a_proxy(web, tmp_path, secret.read_text().strip())
        finally:
            kubectl.run("delete", "clusterrole,clusterrolebinding", "pool-readers")


def behind_a_proxy(web: WebProcess, folder: Path, secret: str) -> None:
    """A real proxy asks who somebody is; what a browser says of itself does not count."""
    passwords = {"ann": "open sesame"}
    lies = {
        "x-forwarded-user": "root",
        "x-forwarded-groups": "system:masters",
        "x-tidegate-proxy-secret": "guessed",
    }
    with an_authenticating_proxy(
        folder, httpx.URL(web.url).port or 0, passwords, groups="sre", secret=secret
    ) as url:
        with httpx.Client(base_url=url, auth=("ann", "open sesame"), timeout=30) as ann:
            for headers in ({}, lies):
                answer = ann.get("/api/v1/me", headers=headers)
                assert answer.status_code == 200, answer.text
                known = answer.json()
                assert (known["user"], known["groups"]) == ("ann", ["sre", "system:authenticated"])
            assert ann.get("/api/v1/rows/computepools").status_code == 200
            assert ann.get("/api/v1/rows/inferences").status_code == 403
        for auth in (None, ("ann", "guessed"), ("root", "open sesame")):
            with httpx.Client(base_url=url, auth=auth, timeout=30) as stranger:
                refused = stranger.get("/api/v1/me", headers={**lies, "x-tidegate-proxy-secret": secret})
                assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)


@pytest.mark.usefixtures("controllers")
def test_a_proxy_names_those_alone_that_it_may_name(kubectl: Kubectl, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("known to the proxy alone\n")
    folder = tmp_path / "web"
    folder.mkdir()
    bounds = {"web_proxy_users": '["ann"]', "web_proxy_groups": '["sre"]'}
    with (
        web_process(kubectl, folder, web_auth="proxy", web_proxy_secret_file=str(secret), **bounds) as web,
        web.browser() as browser,
    ):

        def asked(user: str, groups: str) -> httpx.Response:
            proven = {"x-tidegate-proxy-secret": "known to the proxy alone"}
            said = {"x-forwarded-user": user, "x-forwarded-groups": groups}
            return browser.get("/api/v1/me", headers={**proven, **said})

        grant(
            kubectl,
            "tidegate-web",
            [
                *web_rules(),
                *(
                    {"apiGroups": [""], "resources": [kind], "verbs": ["impersonate"], "resourceNames": names}
                    for kind, names in (("users", ["ann"]), ("groups", ["sre", "system:authenticated"]))
                ),
            ],
        )
        wait_until(
            lambda: asked("ann", "sre,admins").status_code == 200,
            what="the dashboard may act as ann",
        )
        assert asked("ann", "sre,admins").json()["groups"] == ["sre", "system:authenticated"]
        assert asked("bob", "sre").status_code == 401


@contextmanager
def own_dashboard(
    kubeconfig: Path, folder: Path, *arguments: str, end: signal.Signals = signal.SIGTERM
) -> Iterator[tuple[httpx.Client, str, Path]]:
    """`tidegate dashboard`, ended by a signal: a browser that has not been let in, the entrance, and what was said on stderr."""
    errors = folder / "errors"
    with (
        errors.open("w") as complaints,
        subprocess.Popen(
            [sys.executable, "-m", "tidegate", "dashboard", "--no-browser", *arguments],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            said = [process.stdout.readline(), process.stdout.readline()]
            entrance = said[1].strip()
            assert entrance.startswith("http://127.0.0.1:"), (said, errors.read_text())
            root = entrance.partition("/enter")[0]
            with httpx.Client(
                follow_redirects=True, timeout=LONGEST_S, trust_env=False, base_url=root
            ) as browser:
                yield browser, entrance, errors
        finally:
            process.send_signal(end)  # or a failed test would wait for its end
        assert process.wait(30) in {0, -end, 128 + end}
    assert "Traceback" not in errors.read_text()


@pytest.mark.usefixtures("controllers")
def test_who_may_list_in_one_namespace_has_a_dashboard_of_it(
    allocated: Allocated, kubectl: Kubectl, kubeconfig: Path, tmp_path: Path
) -> None:
    allocated.model("mine", 1, 2)
    space = allocated.pools.namespace
    role = ("inferences.tidegate.io", "modelaccesses.tidegate.io", "featurecomputes.tidegate.io", "pods")
    kubectl(
        *("create", "role", "looks", "-n", space, "--verb=get,list,watch", f"--resource={','.join(role)}")
    )
    kubectl("create", "rolebinding", "looks", "-n", space, "--role=looks", "--user=carl")
    may(kubectl, "carl", "list", "inferences.tidegate.io", space)
    with own_dashboard(_in_namespace(space, kubeconfig, tmp_path), tmp_path, "--as", "carl") as carls:
        browser, entrance, errors = carls
        assert (
            f"you may not list Inferences in all namespaces: those of {space} are shown" in errors.read_text()
        )
        browser.get(entrance)
        wait_until(lambda: "mine" in browser.get("/list/inferences").text, what="it is shown")
        rows = browser.get("/api/v1/rows/inferences").json()["items"]
        assert {row["namespace"] for row in rows} == {space}
        assert browser.get("/api/v1/rows/computepools").status_code == 403


def _in_namespace(namespace: str, kubeconfig: Path, folder: Path) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    for each in config["contexts"]:
        each["context"]["namespace"] = namespace
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.usefixtures("controllers")
def test_the_dashboard_of_ones_own_machine_lets_in_whoever_started_it_and_does_without_nodes(
    allocated: Allocated, kubectl: Kubectl, steerer: str, tmp_path: Path
) -> None:
    """Who may not list nodes sees the rest."""
    allocated.pools.node("idle", cpu="8")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(with_token(kubectl, steerer)))
    with own_dashboard(kubeconfig, tmp_path, end=signal.SIGINT) as (browser, entrance, errors):
        assert browser.get("/api/v1/me").status_code == 401
        assert browser.get("/enter?ticket=guessed").status_code == 401
        assert browser.get(entrance).status_code == 200
        assert browser.get("/api/v1/me").json()["mayOverride"] is True
        # It says where it is once it has read everything.
        assert allocated.pool in browser.get("/list/computepools").text
        assert errors.read_text() in {"", "reading the cluster's objects …\n"}
        page = browser.get(f"/computepools/{allocated.pool}")
        assert page.status_code == 200
        assert "Slots of each node" in page.text
        found = browser.get(f"/api/v1/computepools/{allocated.pool}/power")
        assert found.status_code == 200
        assert all(each["total"] is None for each in found.json()["nodes"])
