"""What the processes of a release may do is what they do: by the API server's audit log of all tests before these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.audit_log import Asked, Right, denied, rights, unused
from fixtures.installed import Installed
from tidegate_localcluster.demo.helm import NAMESPACE, RELEASE

CONTROLLERS: Final = f"{NAMESPACE}:{RELEASE}-controllers"
XDS: Final = f"{NAMESPACE}:{RELEASE}-xds"
WEB: Final = f"{NAMESPACE}:{RELEASE}-web"
_OF_MODELS: Final = re.compile(":(inf|fc|mac)-")
"""Accounts of Inferences, FeatureComputes and pipelines."""

MAY_BE_REFUSED: Final[Mapping[tuple[str, str], str]] = {
    (
        CONTROLLERS,
        "because it is being terminated",
    ): "a test's namespace goes, and an object of it is made once more before",
    (
        CONTROLLERS,
        "from a controller that is no longer the leader",
    ): "leaders are stopped and let go on, which is what the policy is for",
    (
        CONTROLLERS,
        'cannot get resource "secrets"',
    ): "a release gives certificates back (tls.xds, tls.existing), while controllers of before end",
    (
        XDS,
        'cannot (list|watch) resource "secrets"',
    ): "a release gives auth.namespaces back, or the namespace goes, while servers of before end",
}
"""By account and words of the API server."""

USED_ELSEWHERE: Final[Mapping[tuple[str, str, str, str], str]] = {
    (CONTROLLERS, "delete", "tidegate.io", "allocationdecisions"): (
        "integration/test_allocator.py::test_the_oldest_decisions_go_when_there_are_too_many"
    ),
    (CONTROLLERS, "delete", "batch", "jobs"): (
        "integration/test_batch_jobs.py::test_a_job_is_followed_to_its_end_and_a_failed_shard_is_gone_on_with"
    ),
    (CONTROLLERS, "patch", "tidegate.io", "computeoverrides/status"): (
        "integration/test_allocator.py::test_an_override_counts_until_it_ends"
    ),
    (CONTROLLERS, "patch", "autoscaling", "horizontalpodautoscalers"): (
        "integration/test_autoscalers.py::test_an_autoscaler_asks_for_no_more_than_the_pool_could_give"
    ),
    **{
        (CONTROLLERS, verb, "policy", "poddisruptionbudgets"): (
            "integration/test_controllers.py::test_a_budget_comes_with_the_second_replica_and_is_repaired"
        )
        for verb in ("get", "patch")
    },
    (CONTROLLERS, "delete", "policy", "poddisruptionbudgets"): (
        "integration/test_pipeline_children.py::"
        "test_pipelines_come_and_go_with_their_routes_and_what_does_not_fit_is_named"
    ),
    **{
        (CONTROLLERS, verb, "kueue.x-k8s.io", "workloads"): (
            "integration/test_kueue.py::test_a_job_waits_for_quota_in_kueues_words_and_nobody_fights_over_it"
        )
        for verb in ("list", "watch")
    },
    **{
        (
            WEB,
            verb,
            "",
            "nodes",
        ): "integration/test_dashboard.py::test_every_node_of_a_pool_is_shown_to_who_may_list_nodes"
        for verb in ("list", "watch")
    },
    (WEB, "create", "authentication.k8s.io", "tokenreviews"): (
        "integration/test_dashboard.py::test_somebody_signs_in_overrides_and_is_seen_by_kubectl"
    ),
}
"""Rights that no test of the whole cluster needs, by account, verb, group and resource, and the test that does."""


def _all(installed: Installed, *kinds: str) -> list[Mapping[str, Any]]:
    found = installed.kubectl.run("get", ",".join(kinds), "--all-namespaces", "--output=json")
    return list(json.loads(found)["items"])


@pytest.fixture
def granted(installed: Installed) -> tuple[Right, ...]:
    """What the roles on the API server give the release's ServiceAccounts."""
    bindings = _all(installed, "clusterrolebindings", "rolebindings")
    return rights(NAMESPACE, bindings, _all(installed, "clusterroles", "roles"))


def _lines(found: Iterable[object]) -> str:
    return "\n".join(sorted(map(str, found)))


def _expected(asked: Asked) -> bool:
    return any(
        asked.account == account and re.search(words, asked.message) for account, words in MAY_BE_REFUSED
    )


@pytest.mark.usefixtures("installed")
def test_no_process_asked_for_what_it_may_not_do(granted: tuple[Right, ...], asked: frozenset[Asked]) -> None:
    ours = {each for each in asked if each.account.startswith(f"{NAMESPACE}:")}
    assert {CONTROLLERS, XDS, WEB} <= {each.account for each in ours}, "the log has what they ask for"
    refused = {each for each in denied(granted, ours) if not _expected(each)}
    assert not refused, f"refused, and not in MAY_BE_REFUSED:\n{_lines(refused)}"


@pytest.mark.usefixtures("installed")
def test_who_needs_no_rights_asked_for_nothing(asked: frozenset[Asked]) -> None:
    """Gateways, node agents and models get no token."""
    accounts = {each.account for each in asked}
    assert {each for each in accounts if each.startswith(f"{NAMESPACE}:")} == {CONTROLLERS, XDS, WEB}
    assert not {each for each in accounts if _OF_MODELS.search(each)}


@pytest.mark.usefixtures("whole_run")
def test_every_right_was_used(
    granted: tuple[Right, ...], asked: frozenset[Asked], request: pytest.FixtureRequest
) -> None:
    idle = [each for each in unused(granted, asked) if _key(each) not in USED_ELSEWHERE]
    if idle and request.session.testsfailed:
        pytest.skip(f"tests have failed, perhaps before they used:\n{_lines(idle)}")
    assert not idle, f"not used by any test, and not in USED_ELSEWHERE:\n{_lines(idle)}"


def test_what_is_used_elsewhere_is_granted_and_its_test_is_there(granted: tuple[Right, ...]) -> None:
    assert not USED_ELSEWHERE.keys() - {_key(each) for each in granted}
    tests = Path(__file__).parents[1]
    for where in USED_ELSEWHERE.values():
        path, _, name = where.partition("::")
        assert re.search(rf"def {name}\(", (tests / path).read_text()), where


def _key(right: Right) -> tuple[str, str, str, str]:
    return right.account, right.verb, right.group, right.resource
