"""The actions that Argo CD offers for a release and a pool, by its own Lua: what they change, and when they are offered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.compute_pool import compute_pool_body
from builders.model_access import model_access_body
from builders.release import ERRORS
from fixtures.gitops import act, actions, entries
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION
from tidegate.api.release_commands import ReleaseCommand, ReleasePhase
from tidegate.planning.access.model_access import with_release
from tidegate.planning.access.release import ReleaseMeasurements, plan_release

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)
COMMANDS = {command.value for command in ReleaseCommand}
Body = dict[str, Any]


def looked_at(body: Body, now: datetime = LATER) -> Body:
    """As it is once the controllers have seen it: the planner's own status."""
    access = ModelAccess.parse(body)
    status = plan_release(access, ReleaseMeasurements(), now).status
    assert status is not None
    return {**body, "status": with_release(access, status).status.dump()}


def a_release(**annotations: str) -> Body:
    """One that has begun."""
    targets = [{"inference": "v3", "weight": 100}, {"inference": "v4", "weight": 0}]
    routes = [{"name": "default", "targets": targets}]
    release = {"route": "default", "target": "v4", "checks": [ERRORS]}
    return looked_at(
        model_access_body(routes=routes, release=release, metadata={"annotations": annotations}), NOW
    )


def phase(body: Body) -> str:
    return str(body["status"]["release"]["phase"])


@pytest.mark.parametrize(
    ("before", "command", "after"),
    [
        ((), "pause", ReleasePhase.PAUSED),
        (("pause",), "resume", ReleasePhase.PROGRESSING),
        ((), "promote", ReleasePhase.PROMOTED),
        ((), "abort", ReleasePhase.ROLLED_BACK),
        (("promote",), "abort", ReleasePhase.ROLLED_BACK),
        (("abort",), "restart", ReleasePhase.PROGRESSING),
    ],
    ids=str,
)
def test_an_action_does_what_the_command_of_its_name_does(
    before: tuple[str, ...], command: str, after: ReleasePhase
) -> None:
    body = a_release()
    for earlier in before:
        body = looked_at(act(body, earlier))
    assert command in actions(body)
    assert phase(looked_at(act(body, command))) == after


def test_nothing_but_the_annotation_is_changed() -> None:
    body = a_release(team="ads")
    changed = act(body, "pause")

    assert changed["metadata"].pop("annotations") == {"team": "ads", RELEASE_ANNOTATION: "pause"}
    del body["metadata"]["annotations"]
    assert {key: changed[key] for key in ("metadata", "spec")} == {
        key: body[key] for key in ("metadata", "spec")
    }


def test_an_access_without_annotations_can_be_acted_on() -> None:
    body = a_release()
    del body["metadata"]["annotations"]
    assert act(body, "pause")["metadata"]["annotations"] == {RELEASE_ANNOTATION: "pause"}


def test_what_would_change_nothing_is_not_offered() -> None:
    body = a_release()
    assert actions(body) == {"pause", "promote", "abort", "restart"}
    paused = looked_at(act(body, "pause"))
    assert actions(paused) == {"resume", "promote", "abort", "restart"}
    aborted = looked_at(act(paused, "abort"))
    assert actions(aborted) == {"restart", "clear"}
    without = model_access_body(routes=[{"name": "default", "targets": [{"inference": "v3"}]}])
    assert actions(without) == set()


def test_what_was_said_last_is_offered_again_once_it_is_cleared() -> None:
    body = looked_at(act(looked_at(act(a_release(), "abort")), "restart"))
    assert "restart" not in actions(body)
    cleared = looked_at(act(body, "clear"))

    assert phase(cleared) == "Progressing"
    assert {"restart", "pause"} <= actions(cleared)
    assert "clear" not in actions(cleared)


def test_a_release_that_an_annotation_holds_is_not_let_go_by_clearing() -> None:
    assert "clear" not in actions(looked_at(act(a_release(), "pause")))


def test_every_command_is_an_action() -> None:
    kinds = {key.rpartition("_")[2] for key in entries() if ".actions." in key}
    assert kinds == {"ModelAccess", "ComputePool"}
    body = a_release()
    for command in COMMANDS:
        assert act(body, command)["metadata"]["annotations"][RELEASE_ANNOTATION] == command


def mode(body: Body) -> PolicyMode:
    """The mode that the allocator reads."""
    return ComputePool.parse(body).spec.policy.mode


@pytest.mark.parametrize("before", list(PolicyMode))
@pytest.mark.parametrize(
    ("action", "after"), [("hold", PolicyMode.HOLD), ("recommend-only", PolicyMode.RECOMMEND_ONLY)]
)
def test_a_pool_goes_to_a_mode_and_back_to_the_one_before(
    before: PolicyMode, action: str, after: PolicyMode
) -> None:
    body = compute_pool_body(policy={"mode": before, "dwell": "1m"}, metadata={"annotations": {"team": "a"}})
    assert (action in actions(body)) == (before is not after)
    assert "resume" not in actions(body)

    changed = act(body, action)
    assert mode(changed) is after
    assert changed["metadata"]["annotations"]["team"] == "a"
    assert changed["spec"] == {**body["spec"], "policy": {"mode": after, "dwell": "1m"}}
    if before is after:
        assert "resume" not in actions(changed)
        return
    assert action not in actions(changed)
    resumed = act(changed, "resume")
    assert (resumed["spec"], actions(resumed)) == (body["spec"], actions(body))


def test_two_actions_in_a_row_resume_the_mode_before_the_first() -> None:
    body = act(act(compute_pool_body(policy={"mode": "Auto"}), "hold"), "recommend-only")
    assert mode(act(body, "resume")) is PolicyMode.AUTO


def test_a_mode_that_git_has_set_since_is_the_one_to_resume() -> None:
    body = act(compute_pool_body(policy={"mode": "Auto"}), "hold")
    body["spec"]["policy"]["mode"] = "RecommendOnly"

    assert actions(body) == {"hold"}
    assert mode(act(act(body, "hold"), "resume")) is PolicyMode.RECOMMEND_ONLY


def test_a_pool_without_a_policy_can_be_held() -> None:
    body = compute_pool_body()
    assert "policy" not in body["spec"]
    assert actions(body) == {"hold"}
    held = act(body, "hold")
    assert mode(held) is PolicyMode.HOLD
    assert mode(act(held, "resume")) is PolicyMode.RECOMMEND_ONLY
