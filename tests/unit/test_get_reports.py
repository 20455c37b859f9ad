"""What `tidegate get` lists, and what it says of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders.allocator import NOW, a_decision
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.feature_compute import a_feature_compute
from builders.inference import an_inference, inference_body
from builders.release import a_release, released
from builders.waiting import ends_in_time
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.cli.options import OutputFormat, print_report
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.reports.listing import ColumnWidths, FollowedRows, ListReport, sort_rows
from tidegate.reports.orders import ListOrder
from tidegate.reports.rows import build_row
from tidegate.services.object_watch import ChangeFeed


def a_status(ready: str, reason: str) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": reason,
        "message": "in\nmore words",
        "lastTransitionTime": "2026-01-01T11:00:00Z",
    }
    return {"observedGeneration": 1, "conditions": [condition]}


WELL = an_inference(
    "a", status={**a_status("True", "AllReplicasReady"), "readyReplicas": 1, "versions": {"serving": "1"}}
)
BROKEN = an_inference(
    "b",
    metadata={"creationTimestamp": "2026-01-01T11:00:00Z"},
    model={"version": "2"},
    status=a_status("False", "ImagePull"),
)
POOL_HELD = {"target": {"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, "hold": True}
OBJECTS: dict[str, tuple[CustomResource, str]] = {
    "inference": (WELL, "ads a Ready 1/1 1 realtime - AllReplicasReady 12h"),
    "swapping": (BROKEN, "ads b NotReady 0/1 -->2 realtime - ImagePull 1h"),
    "access": (
        released(a_release(steps=[10, 100]), step=1, weight=10),
        "ads ctr Progressing 1 v4 10% Progressing no NotAnswered 12h",
    ),
    "features": (a_feature_compute(), "ads user-features Progressing 0/1 4 NotAnswered 12h"),
    "pool": (
        a_compute_pool(policy={"mode": "Auto"}, status={"slices": {"total": 8, "healthy": 7, "free": 1}}),
        "- cpu-a Progressing Auto 0 8 7 1 NotAnswered 12h",
    ),
    "pin": (
        a_compute_override("sale", pin={"replicas": 3}),
        "- sale Inference ads/ctr Pin 3 2026-01-02T00:00:00Z - 12h",
    ),
    "hold": (
        a_compute_override("sale", **POOL_HELD),
        "- sale ComputePool cpu-a Hold 2026-01-02T00:00:00Z - 12h",
    ),
    "decision": (
        a_decision(("ctr", 1, 3), ("batch", 3, 1)),
        "- cpu-a-1 cpu-a 2026-01-01T12:00:00Z Auto - 2 on its way -",
    ),
}


def a_list(
    *objects: CustomResource, sort: ListOrder = ListOrder.NAME, namespace: str | None = None
) -> ListReport:
    return ListReport(
        kind=objects[0].KIND,
        namespace=namespace,
        at=NOW,
        items=sort_rows(map(build_row, objects), sort),
        skipped=(),
    )


@pytest.mark.parametrize("name", OBJECTS)
def test_every_kind_has_a_row(name: str) -> None:
    one, row = OBJECTS[name]
    head, said = a_list(one).render_lines(wide=False)
    assert head.startswith("NAMESPACE   NAME")
    assert " ".join(said.split()) == row
    wide_head, wide = a_list(one).render_lines(wide=True)
    assert len(wide_head) > len(head)
    assert "\n" not in wide


def test_the_worst_come_first_where_that_is_asked_for() -> None:
    def names(sort: ListOrder) -> list[str]:
        return [each.name for each in a_list(WELL, BROKEN, an_inference("0"), sort=sort).items]

    assert names(ListOrder.NAME) == ["0", "a", "b"]
    assert names(ListOrder.STATE) == ["b", "0", "a"]
    assert names(ListOrder.AGE)[0] == "b"


def test_a_list_of_one_namespace_does_not_repeat_it_and_an_empty_one_says_so() -> None:
    head, *_ = a_list(WELL, namespace="ads").render_lines(wide=False)
    assert head.startswith("NAME ")
    empty = ListReport(kind="Inference", namespace="ads", at=NOW, items=(), skipped=("pods: no",))
    assert list(empty.render_lines(wide=False)) == ["left out   pods: no"]
    assert empty.empty_message() == "no Inference in namespace ads"
    assert a_list(WELL).empty_message() == ""
    assert list(a_list(WELL).object_names()) == ["inference.tidegate.io/a"]


def test_that_a_list_is_empty_is_written_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    empty = ListReport(kind="Inference", namespace="ads", at=NOW, items=(), skipped=())
    print_report(empty, OutputFormat.TEXT)
    assert capsys.readouterr() == ("", "no Inference in namespace ads\n")
    print_report(empty, OutputFormat.NAME)
    assert capsys.readouterr() == ("", "")


def test_lines_one_after_the_other_stay_below_each_other() -> None:
    widths = ColumnWidths()
    assert widths.format_line(["NAME", "AGE"]) == "NAME   AGE"
    assert widths.format_line(["a-longer-one", "1h"]) == "a-longer-one   1h"
    assert widths.format_line(["b", "1h"]) == "b              1h"


# changes


def changed(*bodies: Mapping[str, Any]) -> dict[ObjectKey, Mapping[str, Any] | None]:
    return {ObjectKey("ads", each["metadata"]["name"]): each for each in bodies}


def test_a_change_that_no_row_shows_is_none_and_an_end_is_one() -> None:
    followed = FollowedRows("Inference", ListOrder.NAME)

    def told(change: Mapping[ObjectKey, Mapping[str, Any] | None]) -> list[tuple[str, str]]:
        changes, _ = followed.apply_changes(change)
        return [(each.type.value, each.object.name) for each in changes]

    assert told(changed(inference_body("b"), inference_body("a"))) == [("Added", "a"), ("Added", "b")]
    labelled = inference_body("a", metadata={"resourceVersion": "2", "labels": {"x": "y"}})
    assert told(changed(labelled)) == []
    assert told(changed(inference_body("a", replicas=2))) == [("Modified", "a")]
    assert told({ObjectKey("ads", "a"): None, ObjectKey("ads", "never"): None}) == [("Deleted", "a")]
    assert [row.name for row in followed.sorted_rows] == ["b"]


def test_an_object_that_cannot_be_read_is_left_out_and_named() -> None:
    body = {**inference_body("a"), "spec": {"of": "a newer version"}}
    followed = FollowedRows("Inference", ListOrder.NAME)
    changes, (skipped,) = followed.apply_changes(changed(body, inference_body("b")))
    assert (len(changes), skipped.startswith("Inference ads/a")) == (1, True)


async def test_many_changes_within_a_moment_are_one() -> None:
    store = ObjectStore(INFERENCE)
    changes = ChangeFeed(store)
    for version in range(1, 50):
        store.observe("MODIFIED", inference_body("a", metadata={"resourceVersion": str(version)}))
    async with ends_in_time("the changes come"):
        first = await changes.next_changes()
    assert list(first) == [ObjectKey("ads", "a")]
    assert first[ObjectKey("ads", "a")] == store.get(ObjectKey("ads", "a"))
    assert await changes.next_changes(within_s=0.01) == {}
    store.observe("DELETED", inference_body("a", metadata={"resourceVersion": "50"}))
    async with ends_in_time("the deletion comes"):
        assert await changes.next_changes() == {ObjectKey("ads", "a"): None}
