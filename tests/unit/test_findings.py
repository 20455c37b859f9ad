"""What is found wrong with objects, and what is not when they are in order."""

from __future__ import annotations

from typing import Any

import pytest

from builders.compute_pool import a_compute_pool
from builders.conditions import a_condition
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from tidegate.api.meta import ObjectKey
from tidegate.planning.diagnosis.findings import ObjectSet, find_problems

SCALED = {"replicas": None, "scaling": {"minReplicas": 2, "maxReplicas": 6}}
CTR = ObjectKey("ads", "ctr")


def a_status(*conditions: dict[str, str], observed: int = 1) -> dict[str, Any]:
    return {"observedGeneration": observed, "conditions": list(conditions)}


WELL = a_status(
    a_condition("Ready", "True", "AllReplicasReady"), a_condition("Stalled", "False", "Reconciled")
)
HOME = a_model_access("home", status=a_status())


def codes(objects: ObjectSet) -> list[tuple[str, str, str]]:
    return [(each.text.code, each.kind, str(each.key)) for each in find_problems(objects)]


def test_nothing_is_found_where_all_is_well() -> None:
    measured = an_inference(
        replicas=2, placement={"pool": "cpu-a"}, capacity={"requestsPerSecond": "10"}, status=WELL
    )
    assert find_problems(ObjectSet([measured], [HOME], pools=[a_compute_pool(status=a_status())])) == ()


def test_what_a_condition_says_is_told_once_in_its_words_and_not_again_by_its_summaries() -> None:
    full = a_status(
        a_condition("Ready", "False", "WaitingForReplicas"),
        a_condition("Stalled", "True", "PoolNotFound"),
        a_condition("Placed", "False", "PoolNotFound", "there is no pool gold"),
    )
    inference = an_inference(replicas=2, placement={"pool": "gold"}, status=full)
    [found] = find_problems(ObjectSet([inference], [HOME]))
    assert (found.text.code, found.message) == ("TG1202", "there is no pool gold")
    alone = an_inference(
        replicas=2, status=a_status(a_condition("Ready", "False", "ImagePull", "not pulled"))
    )
    [found] = find_problems(ObjectSet([alone], [HOME]))
    assert (found.name, found.message) == ("ImagePull", "not pulled")


def test_conditions_of_others_and_a_batch_at_work_are_no_findings() -> None:
    theirs = a_status(
        a_condition("Synced", "False", "OutOfSync"), a_condition("Complete", "False", "Scoring")
    )
    assert find_problems(ObjectSet([an_inference(replicas=2, status=theirs)], [HOME])) == ()


def test_an_older_status_is_told_and_of_what_is_only_planned_none_is_missed() -> None:
    newer = an_inference(replicas=2, metadata={"generation": 3}, status=WELL)
    assert codes(ObjectSet([newer], [HOME])) == [("TG5001", "Inference", "ads/ctr")]
    planned = frozenset({("Inference", CTR)})
    assert codes(ObjectSet([newer], [HOME], planned=planned)) == []


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"placement": {"pool": "gold"}, "replicas": 2}, "TG1202"),
        ({"placement": {"pool": "cpu-a"}, **SCALED}, "TG5003"),
        ({"replicas": 1}, "TG5006"),
    ],
)
def test_an_inference_beside_others(spec: dict[str, Any], code: str) -> None:
    inference = an_inference(status=WELL, **spec)
    assert codes(ObjectSet([inference], [HOME], pools=[a_compute_pool(status=a_status())])) == [
        (code, "Inference", "ads/ctr")
    ]


def test_two_that_scale_one_inference() -> None:
    inference = an_inference(
        status=WELL, placement={"pool": "cpu-a"}, capacity={"requestsPerSecond": "10"}, **SCALED
    )
    pools = [a_compute_pool(status=a_status())]
    assert codes(ObjectSet([inference], [HOME], pools=pools)) == []
    both = ObjectSet([inference], [HOME], pools=pools, autoscalers={CTR: "ctr-hpa"})
    [found] = find_problems(both)
    assert (found.text.code, "ctr-hpa" in found.message) == ("TG5004", True)


def test_who_is_asked_by_nobody_and_who_is_asked_in_vain() -> None:
    unasked = an_inference("lonely", replicas=2, status=WELL)
    assert codes(ObjectSet([unasked])) == [("TG5005", "Inference", "ads/lonely")]
    several = a_model_access("several", routes=[a_route("all", "ctr", "cvr")], status=a_status())
    missing = ObjectSet([an_inference(replicas=2, status=WELL)], [several])
    [found] = find_problems(missing)
    assert (found.name, found.message) == (
        "TargetNotFound",
        "route all: Inference cvr does not exist in namespace ads: create it, or correct the name",
    )
    unread = ObjectSet(
        missing.inferences, missing.accesses, unread=frozenset({("Inference", ObjectKey("ads", "cvr"))})
    )
    assert find_problems(unread) == ()


def test_one_replica_is_enough_where_another_inference_answers_instead() -> None:
    models = [an_inference(replicas=1, status=WELL), an_inference("cvr", replicas=2, status=WELL)]
    route = a_route("all", fallback={"inference": "cvr"})
    assert codes(ObjectSet(models, [a_model_access("home", routes=[route], status=a_status())])) == []


def test_a_route_to_work_that_yields() -> None:
    offline = an_inference(tier="offline", replicas=2, status=WELL)
    assert codes(ObjectSet([offline], [HOME])) == [("TG5007", "ModelAccess", "ads/home")]


def test_of_two_that_want_a_host_the_younger_one_is_told_and_what_is_planned_is_the_youngest() -> None:
    def wants(name: str, **metadata: Any) -> Any:
        return a_model_access(name, metadata=metadata, hosts=["ctr.example"], status=a_status())

    models = [an_inference(replicas=2, status=WELL)]
    older = wants("zz", creationTimestamp="2025-01-01T00:00:00Z")
    assert codes(ObjectSet(models, [wants("aa"), older])) == [("TG2011", "ModelAccess", "ads/aa")]
    planned = wants("aa", creationTimestamp=None)
    objects = ObjectSet(
        models, [planned, older], planned=frozenset({("ModelAccess", ObjectKey("ads", "aa"))})
    )
    assert codes(objects) == [("TG2011", "ModelAccess", "ads/aa")]


def test_the_worst_comes_first() -> None:
    objects = ObjectSet(
        [an_inference("aa", replicas=2, status=WELL), an_inference(replicas=1, status=WELL)],
        [HOME],
        autoscalers={},
    )
    broken = an_inference("zz", replicas=2, placement={"pool": "gold"}, status=WELL)
    found = find_problems(ObjectSet([*objects.inferences, broken], objects.accesses))
    assert [each.text.level.value for each in found] == ["Error", "Warning", "Info", "Info"]


@pytest.mark.parametrize(
    ("releasing", "rolled_back", "found"),
    [
        (("True", "Stepping"), ("False", "Stepping"), []),
        (("True", "Paused"), ("False", "Paused"), []),
        (("False", "Promoted"), ("False", "Promoted"), []),
        (("False", "Reconciled"), ("False", "Reconciled"), []),
        (("False", "CheckFailed"), ("True", "CheckFailed"), [("TG2107", "ModelAccess", "ads/home")]),
    ],
)
def test_of_a_release_only_its_failure_is_a_finding(
    releasing: tuple[str, str], rolled_back: tuple[str, str], found: list[tuple[str, str, str]]
) -> None:
    status = a_status(a_condition("Releasing", *releasing), a_condition("RolledBack", *rolled_back))
    models = [an_inference(replicas=2, status=WELL)]
    assert codes(ObjectSet(models, [a_model_access("home", status=status)])) == found


def test_a_summary_that_says_something_worse_is_told_beside_the_rest() -> None:
    status = a_status(
        a_condition("Ready", "False", "ChildRefused", "a quota"),
        a_condition("SamplesLogged", "False", "SamplesDropped"),
    )
    found = find_problems(ObjectSet([an_inference(replicas=2, status=status)], [HOME]))
    assert [each.name for each in found] == ["ChildRefused", "SamplesDropped"]


def test_of_kinds_that_nobody_could_list_nothing_is_missed() -> None:
    placed = an_inference(replicas=2, placement={"pool": "gold"}, status=WELL)
    blind = frozenset({"ComputePool", "ModelAccess"})
    assert codes(ObjectSet([placed], unlisted=blind)) == []
    assert codes(ObjectSet((), [HOME], unlisted=frozenset({"Inference"}))) == []
