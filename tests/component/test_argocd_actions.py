"""The actions that Argo CD offers for a release, by its own Lua: what they change, and when they are offered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.model_access import model_access_body
from builders.release import ERRORS
from fixtures.gitops import act, actions, entries
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
    (key,) = [key for key in entries() if ".actions." in key]
    assert key == "resource.customizations.actions.tidegate.io_ModelAccess"
    body = a_release()
    for command in COMMANDS:
        assert act(body, command)["metadata"]["annotations"][RELEASE_ANNOTATION] == command
