"""A shared feature whose FeatureCompute is gone or has changed: all else of its users' specs still applies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.live_features import live_features_spec, stream_source
from builders.overlay import overlaid
from builders.shared_features import USER, a_user, an_origin, shared
from tidegate.api.feature_compute import FeatureCompute
from tidegate.errors import InvalidSpecError
from tidegate.planning.features import last_definitions
from tidegate.planning.features.feature_compute import FeaturesPlan
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.last_definitions import compile_features, resolve_if_usable
from unit.test_shared_feature_plan import PROFILES, plan, read_condition

LATER = {"name": "later", "clip": {"field": "feature.idle_log", "min": 0, "max": 5}}
CHAINED = shared("idle_log", owner="core/facts")


def after(user: FeatureCompute, planned: FeaturesPlan, **changes: Any) -> FeatureCompute:
    """The object with the status of a pass, and another spec."""
    body = overlaid(user.dump(), {"spec": changes, "metadata": {"generation": 2}})
    return user.parse({**body, "status": {**planned.status, "observedGeneration": 1}})


def read_definitions(planned: FeaturesPlan) -> Any:
    return planned.status["sharedDefinitions"]


def read_plan_hash(planned: FeaturesPlan) -> str:
    return str(planned.status["planHash"])


def find_deployment(planned: FeaturesPlan) -> Any:
    return next(item for item in planned.apply if item["kind"] == "Deployment")


@pytest.mark.parametrize(
    ("origins", "reason", "says"),
    [
        ((), "TargetNotFound", "FeatureCompute ads/live does not exist, or does not share"),
        ((an_origin(shared_with="ops"),), "TargetNotFound", "does not exist, or does not share"),
        (
            (an_origin(features=live_features_spec()["features"][:1]),),
            "PlanInvalid",
            "has no feature idle_log",
        ),
        ((an_origin(features=[CHAINED]),), "PlanInvalid", "use core/facts itself"),
        (
            (an_origin(entities=[{**USER, "key": "uid"}]),),
            "PlanInvalid",
            "with key uid of type int64, not user_id",
        ),
        (
            (
                an_origin(
                    features=[
                        *live_features_spec()["features"][:1],
                        {
                            "name": "idle_log",
                            "window": {"field": "clicks.click", "aggregate": "Sum", "over": "999h"},
                        },
                    ]
                ),
            ),
            "PlanInvalid",
            "feature idle_log of FeatureCompute ads/live: window.over: over must not",
        ),
    ],
    ids=["deleted", "withdrawn", "feature removed", "shared itself", "other key", "does not compile"],
)
def test_without_a_usable_definition_the_last_one_counts_and_the_rest_of_the_spec_applies(
    origins: tuple[FeatureCompute, ...], reason: str, says: str
) -> None:
    user = a_user(shared("idle_log"), shared("age"))
    before = plan(user, an_origin())

    edited = after(user, before, replicas=3, resources={"memory": "3Gi"})
    planned = plan(edited, *origins)

    assert find_deployment(planned)["spec"]["replicas"] == 3
    assert planned.status["planHash"] == before.status["planHash"]
    assert planned.status["outputs"] == before.status["outputs"]
    assert read_definitions(planned) == read_definitions(before)
    status, given_reason, message = read_condition(planned, "PlanCompiled")
    assert (status, given_reason) == ("False", reason)
    assert says in message
    assert message.endswith(
        "; until then the last usable definition of FeatureCompute ads/live counts, in plan "
        f"{read_plan_hash(before)[:12]}"
    )
    # Its pods answer: what is not there yet is the pods' matter alone.
    assert read_condition(planned, "Ready") == read_condition(plan(edited, an_origin()), "Ready")
    assert [event.reason for event in planned.events] == [reason]


def test_own_features_change_beside_a_kept_definition() -> None:
    user = a_user(shared("idle_log"))
    edited = after(user, plan(user, an_origin()), features=[shared("idle_log"), LATER])

    planned = plan(edited)

    outputs: Any = planned.status["outputs"]
    assert [output["name"] for output in outputs] == ["idle_log", "later"]
    assert planned.status["planHash"] == plan(edited, an_origin()).status["planHash"]


def test_what_was_never_used_is_not_there_and_nothing_runs_differently() -> None:
    user = a_user(shared("idle_log"))
    planned = plan(
        after(user, plan(user, an_origin()), features=[shared("idle_log"), shared("clicks_1h")], replicas=3)
    )

    assert planned.apply == ()
    assert read_condition(planned, "PlanCompiled")[:2] == ("False", "TargetNotFound")
    assert read_condition(planned, "Ready")[0] == "False"
    # The definition is there for when the spec is put right.
    assert read_definitions(planned)


def test_what_a_used_feature_reads_cannot_be_used_by_name_after_consent_is_withdrawn() -> None:
    user = a_user(shared("idle_log"), shared("age"))
    before = plan(user, an_origin())
    withdrawn = an_origin(shared_with="ops")
    assert [item["features"] for item in read_definitions(before)] == [["age", "idle_log"]]

    planned = plan(after(user, before, features=[shared("idle_log"), shared("idle")]), withdrawn)

    assert planned.apply == ()
    assert read_condition(planned, "PlanCompiled")[:2] == ("False", "TargetNotFound")
    # Another name here for what was used, and less of it, are no new use.
    renamed = plan(after(user, before, features=[shared("log", "idle_log")]), withdrawn)
    outputs: Any = renamed.status["outputs"]
    assert [output["name"] for output in outputs] == ["log"]
    assert [item["features"] for item in read_definitions(renamed)] == [["idle_log"]]


def test_an_own_mistake_is_named_and_no_old_definition_is_blamed() -> None:
    user = a_user(shared("idle_log"))
    bad = {"name": "bad", "log": {"field": "feature.gone"}}
    planned = plan(after(user, plan(user, an_origin()), features=[shared("idle_log"), bad]), an_origin())

    status, reason, message = read_condition(planned, "PlanCompiled")
    assert (status, reason) == ("False", "PlanInvalid")
    assert message.startswith("spec.features[1].log.field")
    assert planned.apply == ()


def test_each_origin_has_the_present_or_the_last_definition_as_a_whole() -> None:
    user = a_user(shared("idle_log"), shared("idle_2", "idle_bucket"), shared("other", "age", "near"))
    near = an_origin("near", "feed", features=live_features_spec()["features"][:1], sources=[PROFILES])
    before = plan(user, an_origin(), near)
    other_log = {"name": "age", "lookup": {"field": "profiles.age", "type": "float32"}}
    changed = an_origin("near", "feed", features=[other_log], sources=[PROFILES])
    without_log = [item for item in live_features_spec()["features"] if item["name"] != "idle_log"]
    bucket = {"name": "idle_bucket", "bucketize": {"field": "feature.idle", "boundaries": [7]}}
    half = an_origin(features=[*(item for item in without_log if item["name"] != "idle_bucket"), bucket])

    compiled = compile_features(after(user, before), {item.key: item for item in (changed, half)}.get)

    # ads/live has lost a feature, so its other one is the last one too; feed/near has changed, and is followed.
    dump = {feature.name: feature.dump() for feature in compiled.features.spec.features}
    assert dump["idle_2"]["bucketize"]["boundaries"] == [60, 3600]
    assert dump["other"]["lookup"]["type"] == "float32"
    assert "has no feature idle_log" in str(compiled.outdated)


@pytest.mark.parametrize("changed", ["near", "wide"])
def test_one_incompatible_origin_keeps_no_other_at_its_last_definition(changed: str) -> None:
    names = ("near", "wide")
    age = live_features_spec()["features"][:1]
    clips = [
        {"name": f"own_{name}", "clip": {"field": f"feature.{name}", "min": 0, "max": 9}} for name in names
    ]
    user = a_user(shared("idle_log"), *(shared(name, "age", name) for name in names), *clips)
    usable = {name: an_origin(name, "feed", features=age, sources=[PROFILES]) for name in names}
    before = plan(user, an_origin(), *usable.values())
    # What a clip cannot read is an error of the clip, which names no FeatureCompute.
    sequence = {"name": "age", "sequence": {"field": "clicks.item_id", "last": 3}}
    unusable = an_origin(changed, "feed", features=[sequence])
    idle = {"name": "idle", "timeSince": {"source": "clicks"}}
    clip = {"name": "idle_log", "clip": {"field": "feature.idle", "min": 0, "max": 3}}
    followed = an_origin(features=[idle, clip])

    planned = plan(after(user, before), followed, *{**usable, changed: unusable}.values())

    assert read_plan_hash(planned) == read_plan_hash(plan(user, followed, *usable.values()))
    assert read_plan_hash(planned) != read_plan_hash(before)
    status, _, message = read_condition(planned, "PlanCompiled")
    assert status == "False"
    assert f"; until then the last usable definition of FeatureCompute {changed} counts, in" in message


def test_two_incompatible_origins_both_have_their_last_definition() -> None:
    names = ("near", "wide")
    clips = [
        {"name": f"own_{name}", "clip": {"field": f"feature.{name}", "min": 0, "max": 9}} for name in names
    ]
    user = a_user(*(shared(name, "age", name) for name in names), *clips)
    age = live_features_spec()["features"][:1]
    before = plan(user, *(an_origin(name, "feed", features=age, sources=[PROFILES]) for name in names))
    sequence = {"name": "age", "sequence": {"field": "clicks.item_id", "last": 3}}

    planned = plan(after(user, before), *(an_origin(name, "feed", features=[sequence]) for name in names))

    assert read_plan_hash(planned) == read_plan_hash(before)
    message = read_condition(planned, "PlanCompiled")[2]
    assert "the last usable definition of FeatureCompute near and FeatureCompute wide counts" in message


def test_a_definition_has_what_is_used_and_no_more() -> None:
    planned = plan(a_user(shared("idle_bucket")), an_origin(store={"redis": {"address": "redis.ads:6379"}}))

    (item,) = read_definitions(planned)
    definition = json.loads(item["definition"])
    assert item["featureCompute"] == "ads/live"
    assert [feature["name"] for feature in definition["features"]] == ["idle", "idle_bucket"]
    assert [source["name"] for source in definition["sources"]] == ["clicks"]
    assert [entity["name"] for entity in definition["entities"]] == ["user"]
    assert definition.keys() == {"entities", "sources", "request", "features"}
    assert definition["request"] == []


REQUEST_ONLY = {"name": "place", "log": {"field": "request.position"}}


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ({"features": [REQUEST_ONLY]}, ["place"]),
        ({"features": [{"name": "bits", "hash": {"field": "user.user_id", "buckets": 9}}]}, ["bits"]),
        ({"features": live_features_spec()["features"][:1], "sources": [PROFILES]}, ["age"]),
        ({}, ["idle_log"]),
        ({}, ["idle_log", "clicks_1h"]),
        ({"store": {"redis": {"address": "redis.ads:6379"}}}, ["idle_bucket"]),
    ],
    ids=["request only", "key only", "table", "events", "several", "store"],
)
def test_each_definition_that_is_written_reads_back(spec: dict[str, Any], used: list[str]) -> None:
    user = a_user(*(shared(name) for name in used))
    before = plan(user, an_origin(**spec))
    assert read_condition(before, "PlanCompiled")[0] == "True"

    compiled = compile_features(after(user, before), {}.get)

    assert compiled.plan.hash == before.status["planHash"]
    assert read_definitions(plan(after(user, before))) == read_definitions(before)


def test_a_spec_that_shares_nothing_any_more_keeps_nothing() -> None:
    user = a_user(shared("idle_log"))
    own = {"name": "x", "timeSince": {"source": "clicks"}}
    alone = after(user, plan(user, an_origin()), features=[own], sources=[stream_source()])

    assert not plan(alone).status.get("sharedDefinitions")


@pytest.mark.parametrize("definition", ["", "[]", "{}", '{"entities": 3}', "[" * 60_000])
def test_a_damaged_definition_counts_as_none(definition: str) -> None:
    user = a_user(shared("idle_log"))
    planned = plan(user, an_origin())
    damaged = {"featureCompute": "ads/live", "definition": definition}
    edited = user.parse({**user.dump(), "status": {**planned.status, "sharedDefinitions": [damaged]}})

    with pytest.raises(InvalidSpecError, match="does not exist") as caught:
        compile_features(edited, {}.get)
    # Who follows the causes of an error comes to an end.
    assert caught.value.__cause__ is not caught.value
    assert compile_features(edited, {an_origin().key: an_origin()}.get).outdated is None


def test_a_forged_status_brings_no_secret_of_another_namespace() -> None:
    user = a_user(shared("idle_log"))
    planned = plan(user, an_origin())
    (item,) = read_definitions(planned)
    forged = json.loads(item["definition"])
    forged["sources"][0]["stream"]["nats"]["secretName"] = "theirs"
    status = {**planned.status, "sharedDefinitions": [{**item, "definition": json.dumps(forged)}]}

    with pytest.raises(InvalidSpecError, match="does not exist"):
        compile_features(user.parse({**user.dump(), "status": status}), {}.get)


def test_definitions_that_are_too_long_are_not_kept_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    age = live_features_spec()["features"][:1]
    origins = (an_origin(), an_origin("near", "feed", features=age, sources=[PROFILES]))
    user = a_user(shared("idle_log"), shared("other", "age", "near"))
    lengths = [len(item["definition"]) for item in read_definitions(plan(user, *origins))]

    monkeypatch.setattr(last_definitions, "MAX_DEFINITION_CHARS", sum(lengths))
    fitting = plan(user, *origins)
    monkeypatch.setattr(last_definitions, "MAX_DEFINITION_CHARS", sum(lengths) - 1)
    planned = plan(user, *origins)

    assert [item["featureCompute"] for item in read_definitions(fitting)] == ["ads/live", "feed/near"]
    assert [item["featureCompute"] for item in read_definitions(planned)] == ["ads/live"]
    status, _, message = read_condition(planned, "PlanCompiled")
    assert status == "True"
    assert "the definition of FeatureCompute near is too long to keep" in message
    assert "too long" not in read_condition(fitting, "PlanCompiled")[2]


def test_pipelines_and_inferences_see_the_same_plan() -> None:
    user = a_user(shared("idle_log"))
    before = plan(user, an_origin())

    resolved = resolve_if_usable(after(user, before), {}.get)

    assert compile_plan(resolved).hash == before.status["planHash"]


def test_definitions_that_can_be_used_are_neither_read_from_the_status_nor_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user, origin = a_user(shared("idle_log")), an_origin()
    edited = after(user, plan(user, origin))
    monkeypatch.delattr(last_definitions, "json")

    resolved = resolve_if_usable(edited, {origin.key: origin}.get)

    assert [feature.name for feature in resolved.spec.features] == ["ads/live.idle", "idle_log"]
    with pytest.raises(NameError, match="json"):
        resolve_if_usable(edited, {}.get)
