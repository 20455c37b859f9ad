"""What people read of shared spares: which one serves for an Inference and why, or why none does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.reports.explanation import ExplanationInputs, explain_inference, explain_pool
from tidegate.reports.status import RelatedObjects
from tidegate.reports.status_pool import PoolObjects, report_pool

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPARE: dict[str, Any] = {
    "name": "spare-cpu-a-0",
    "namespace": "ads",
    "node": "n2",
    "slices": 1,
    "models": [{"inference": "ctr", "version": "3"}, {"inference": "cvr"}],
    "reason": "the loss of node n1 takes 0.8 busy replicas of ctr (0.5), cvr (0.3), and no other node's takes more",
    "problem": "cvr: version 1 is Loading",
}
LINE = (
    "ads/spare-cpu-a-0, 1 slice on node n2, has ctr version 3, cvr (not loaded): the loss of node n1 takes 0.8 busy replicas of "
    "ctr (0.5), cvr (0.3), and no other node's takes more; cvr: version 1 is Loading"
)
NONE = "policy.nodeLoss.sharedSpares.maxSlices is 1: raise it"
POOL = a_compute_pool(
    status={
        "sharedSpares": {
            "slices": 1,
            "spares": [SPARE],
            "uncovered": [{"inference": "ads/rank", "reason": NONE}],
        }
    }
)


def explain(name: str, namespace: str = "ads") -> list[str]:
    inference = an_inference(name, namespace, placement={"pool": "cpu-a"})
    return list(explain_inference(inference, ExplanationInputs(POOL, (), (), NOW)).render_lines(wide=False))


def test_an_inference_names_its_spare_or_why_it_has_none() -> None:
    for name in ("ctr", "cvr"):
        assert f"  spare       {LINE}" in explain(name)
    assert f"  spare       none: {NONE}" in explain("rank")
    assert not [line for line in explain("ctr", "other") if "spare-cpu-a" in line]
    assert not [line for line in explain("embed") if "spare" in line]


def test_a_pool_lists_all_of_them() -> None:
    expected = [f"  spare       {LINE}", f"  spare       none for ads/rank: {NONE}"]
    explained = explain_pool(POOL, ExplanationInputs(POOL, (), (), NOW)).render_lines(wide=False)
    status = report_pool(POOL, PoolObjects(), RelatedObjects(NOW)).summary_lines(wide=False)
    for lines in (list(explained), list(status)):
        assert [line for line in lines if "spare" in line] == expected
    plain = report_pool(a_compute_pool(), PoolObjects(), RelatedObjects(NOW)).summary_lines(wide=False)
    assert not [line for line in plain if "spare" in line]
