"""Features that a FeatureCompute uses by name from others: what they compile into, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.events import DAY, MINUTE
from builders.feature_compute import a_feature_compute
from builders.features import write_table
from builders.live_features import live_features_spec, stream_source
from builders.overlay import overlaid
from builders.shared_features import USER, a_user, an_origin, shared
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_compute import FeaturesObserved, FeaturesPlan, plan_features
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.last_definitions import resolve_if_usable
from tidegate.planning.features.shared_features import (
    SharedFeatureError,
    list_shared_keys,
    resolve_shared,
)
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AS_OF, describe_columns
from tidegate_dataplane.features.offline import make_engine

NOW = 1_700_000_000_000
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
PROFILES = {"name": "profiles", "entity": "user", "table": {"uri": "file:///models/tables/users.parquet"}}


def resolve(user: FeatureCompute, *origins: FeatureCompute) -> FeatureCompute:
    return resolve_shared(user, {item.key: item for item in origins}.get)


def plan(user: FeatureCompute, *origins: FeatureCompute) -> FeaturesPlan:
    observed = FeaturesObserved(
        user, datetime(2026, 1, 1, tzinfo=UTC), origins={item.key: item for item in origins}
    )
    return plan_features(observed, SETTINGS)


def read_condition(planned: FeaturesPlan, kind: str) -> tuple[str, str, str]:
    items: Any = planned.status["conditions"]
    return next((item["status"], item["reason"], item["message"]) for item in items if item["type"] == kind)


class TestPlan:
    def test_shared_features_have_the_values_of_their_origin(self, tmp_path: Path) -> None:
        origin = an_origin()
        names = ["age_x_place", "ctr_1d", "hist_items", "idle_log", "clicks_1h", "place"]
        user = a_user(*map(shared, names), shared("how_old", "age"), shared("idle_again", "idle_bucket"))
        paths = {"profiles": write_table(tmp_path / "users.parquet", user_id=[1, 2], age=[30, 40])}
        clicks = write_table(
            tmp_path / "clicks.parquet",
            user_id=[1, 2, 1, 1],
            ts=[NOW - 2 * DAY, NOW - MINUTE, NOW - 1, NOW],
            item_id=[5, 6, 7, 8],
            click=[1, 0, 1, 1],
            price=[0.5, 1.5, 2.5, 3.5],
            page=["a", "b", "c", "d"],
        )
        inputs = {
            "user_id": np.array([1, 2, 3, 1]),
            "position": np.array([4, 300, -2, 1]),
            AS_OF: np.array([NOW, NOW - 1, NOW, NOW - DAY]),
        }

        def compute(features: FeatureCompute) -> Mapping[str, Any]:
            return make_engine(compile_plan(features), paths, {"clicks": clicks}).compute_features(inputs)

        resolved = resolve(user, origin)
        compiled, answers, expected = compile_plan(resolved), compute(resolved), compute(origin)

        assert [output.name for output in compiled.outputs] == [*names, "how_old", "idle_again"]
        renamed = {"how_old": "age", "idle_again": "idle_bucket"}
        for output in compiled.outputs:
            values = expected[renamed.get(output.name, output.name)]
            assert answers[output.name].tobytes() == values.tobytes(), output.name
            assert answers[output.name].dtype == values.dtype
        assert np.unique(answers["ctr_1d"]).size > 1
        assert [tensor.name for tensor in compiled.inputs] == ["user_id", "position"]
        # What is only read is no output, and no column of a file.
        assert [feature.name for feature in compiled.features][:2] == ["ads/live.age", "ads/live.idle"]
        assert [column.name for column in describe_columns(compiled).columns] == [*names, *renamed]

    def test_own_features_read_shared_ones_and_share_their_sources(self) -> None:
        own = {"name": "newest", "sequence": {"field": "seen.item_id", "last": 2}}
        log = {"name": "age_log", "log": {"field": "feature.age"}}
        user = a_user(shared("age"), log, shared("clicks_1h"), own, sources=[stream_source("seen")])

        compiled = compile_plan(resolve(user, an_origin()))

        # The stream is declared under another name here, and read once.
        assert [stream.name for stream in compiled.streams] == ["seen"]
        assert [table.name for table in compiled.tables] == ["profiles"]
        assert [output.name for output in compiled.outputs] == ["age", "age_log", "clicks_1h", "newest"]

    def test_equal_sources_of_two_origins_are_read_once(self) -> None:
        near = a_feature_compute("near", "feed", sources=[PROFILES])
        user = a_user(shared("age"), shared("bucket", "age_bucket", "near"))

        (table,) = compile_plan(resolve(user, an_origin(), near)).tables

        assert table.name == "profiles"

    def test_the_dead_letters_of_a_copied_stream_are_those_of_its_owner(self) -> None:
        origin = an_origin(sources=[PROFILES, stream_source(deadLetters={"subject": "dead"})])

        assert compile_plan(origin).dead_letters
        assert compile_plan(resolve(a_user(shared("idle")), origin)).dead_letters == ()

    def test_only_what_a_used_feature_is_made_of_changes_the_plan(self) -> None:
        user = a_user(shared("idle_bucket"))
        body = live_features_spec()["features"]
        other = [{**item, "bucketize": {"field": "feature.idle", "boundaries": [1]}} for item in body[7:8]]

        before = compile_plan(resolve(user, an_origin())).hash

        assert compile_plan(resolve(user, an_origin(features=body[4:8]))).hash == before
        assert compile_plan(resolve(user, an_origin(features=[*body[:7], *other]))).hash != before

    def test_an_object_of_the_same_namespace_needs_no_consent_and_lends_its_secrets(self) -> None:
        stream = stream_source(nats={"secretName": "reader"})
        origin = an_origin(shared_with="", sources=[PROFILES, stream])
        user = a_user(shared("idle", owner="live"), namespace="ads")

        (copied,) = compile_plan(resolve(user, origin)).streams

        assert copied.secret_name == "reader"

    def test_the_store_is_that_of_the_user(self) -> None:
        user = a_user(shared("idle"), store={"redis": {"address": "redis.feed:6379"}})

        store = compile_plan(resolve(user, an_origin())).store

        assert store is not None
        assert (store.address, store.key_prefix) == ("redis.feed:6379", "feed/home")

    def test_the_objects_that_wake_it_are_those_that_it_names(self) -> None:
        user = a_user(shared("age"), shared("b", "age", "near"), shared("idle"))

        assert list_shared_keys(user) == (ObjectKey("ads", "live"), ObjectKey("feed", "near"))
        assert list_shared_keys(an_origin()) == ()


def a_table_at(uri: str) -> FeatureCompute:
    return an_origin(sources=[{**PROFILES, "table": {"uri": uri}}, stream_source()])


CHAIN = [shared("age", owner="core/facts"), {"name": "older", "log": {"field": "feature.age"}}]
FORWARD = [{"name": "a", "log": {"field": "feature.b"}}, {"name": "b", "log": {"field": "feature.a"}}]


class TestRefusals:
    @pytest.mark.parametrize(
        ("user", "origins", "message"),
        [
            (a_user(shared("age", owner="home")), (), "FeatureCompute home is this one: read feature.<name>"),
            (
                a_user(shared("ages")),
                (an_origin(features=live_features_spec()["features"][:2]),),
                "FeatureCompute ads/live has no feature ages; it has age, hist_items",
            ),
            (
                a_user(shared("age")),
                (an_origin(features=CHAIN),),
                "made of age of FeatureCompute core/facts, and a feature is shared only by the FeatureCompute that declares it: use "
                "core/facts itself",
            ),
            (a_user(shared("older")), (an_origin(features=CHAIN),), "use core/facts itself"),
            (a_user(shared("a")), (an_origin(features=FORWARD),), "not declared above it: its plan"),
            (
                a_user(shared("age"), entities=[{**USER, "key": "uid"}]),
                (an_origin(),),
                "is of entity user with key user_id of type int64, not uid of type int64: declare the same in spec.entities",
            ),
            (
                a_user(shared("age"), entities=[{**USER, "name": "item", "key": "item_id"}]),
                (an_origin(),),
                "with key user_id of type int64: declare the same in spec.entities",
            ),
            (
                a_user(shared("place"), request=[]),
                (an_origin(),),
                "reads request.position of type int64: declare it in spec.request",
            ),
            (
                a_user(shared("idle"), sources=[stream_source(ttl="24h")]),
                (an_origin(),),
                "reads another source clicks than that of spec.sources, with a different ttl: give yours another name, or the same ttl",
            ),
            (
                a_user(shared("age"), shared("b", "age", "near")),
                (
                    an_origin(),
                    a_feature_compute(
                        "near", "feed", sources=[{**PROFILES, "table": {"uri": "s3://tables/b.parquet"}}]
                    ),
                ),
                "with a different uri: declare one of the two in spec.sources, under another name",
            ),
            (
                a_user(shared("idle"), {"name": "own", "timeSince": {"source": "clicks"}}),
                (an_origin(),),
                "'clicks' is of a source that only shared features read here: declare it in spec.sources too",
            ),
            (
                a_user(shared("idle"), entities=[USER, {**USER, "name": "clicks", "key": "click_id"}]),
                (an_origin(),),
                "which is also the name of an entity here: declare the source in spec.sources under another name",
            ),
            (
                a_user(shared("age")),
                (a_table_at("pvc://tables/users.parquet"),),
                "a volume of namespace ads, which no pod of feed can mount: its owner can publish the table in an object store",
            ),
            (
                a_user(shared("idle")),
                (an_origin(sources=[PROFILES, stream_source(nats={"secretName": "reader"})]),),
                "with a Secret of namespace ads, which no pod of feed can mount: declare clicks in spec.sources with a Secret of this "
                "namespace, and else as ads/live does",
            ),
        ],
    )
    def test_what_cannot_be_used_is_named_with_the_way_out(
        self, user: FeatureCompute, origins: tuple[FeatureCompute, ...], message: str
    ) -> None:
        with pytest.raises(SharedFeatureError) as caught:
            resolve(user, *origins)

        assert message in str(caught.value)
        assert caught.value.path.startswith("spec.features[")
        assert caught.value.reason is Reason.PLAN_INVALID
        # Whatever calls it is refused as well, and not answered without the feature.
        with pytest.raises(InvalidSpecError, match="cannot be used here"):
            compile_plan(resolve_if_usable(user, {item.key: item for item in origins}.get))

    def test_a_secret_is_never_that_of_the_origin(self) -> None:
        foreign = an_origin(sources=[PROFILES, stream_source(kafka={"secretName": "theirs", "tls": True})])
        mine = stream_source("mine", kafka={"secretName": "ours", "sasl": "SCRAM-SHA-512", "tls": True})

        (stream,) = compile_plan(resolve(a_user(shared("idle"), sources=[mine]), foreign)).streams

        assert (stream.name, stream.secret_name) == ("mine", "ours")

    def test_a_feature_that_does_not_compile_there_is_named_there(self) -> None:
        window = {"field": "clicks.click", "aggregate": "Sum", "over": "999h"}
        origin = an_origin(features=[{"name": "sum", "window": window}])

        with pytest.raises(InvalidSpecError) as caught:
            compile_plan(resolve(a_user(shared("own", "sum")), origin))

        assert str(caught.value).startswith(
            "feature sum of FeatureCompute ads/live: window.over: over must not"
        )

    def test_places_in_the_spec_do_not_count_what_is_hidden(self) -> None:
        bad = {"name": "bad", "log": {"field": "feature.gone"}}

        with pytest.raises(InvalidSpecError) as caught:
            compile_plan(resolve(a_user(shared("idle_log"), bad), an_origin()))

        assert caught.value.path == "spec.features[1].log.field"


class TestConditions:
    def test_a_compiled_plan_names_the_origins(self) -> None:
        planned = plan(a_user(shared("age"), shared("idle_log")), an_origin())

        status, reason, message = read_condition(planned, "PlanCompiled")
        assert (status, reason) == ("True", "PlanCompiled")
        assert message.startswith("2 features, 2 of them of FeatureCompute ads/live, plan ")
        outputs: Any = planned.status["outputs"]
        assert [output["name"] for output in outputs] == ["age", "idle_log"]

    def test_a_store_that_no_feature_needs_is_named(self) -> None:
        store = {"redis": {"address": "redis.feed:6379"}}

        lookups = plan(a_user(shared("age"), store=store), an_origin())
        events = plan(a_user(shared("idle_log"), store=store), an_origin())

        says = "; spec.store is not used, because no feature reads events"
        assert read_condition(lookups, "PlanCompiled")[2].endswith(says)
        assert says not in read_condition(events, "PlanCompiled")[2]

    @pytest.mark.parametrize("shared_with", [None, "feeds", "", "*"])
    def test_without_the_object_or_its_consent_from_the_beginning_nothing_runs(
        self, shared_with: str | None
    ) -> None:
        origins = [] if shared_with is None else [an_origin(shared_with=shared_with)]
        planned = plan(a_user(shared("age")), *origins)

        assert (planned.apply, planned.delete) == ((), ())
        status, reason, message = read_condition(planned, "PlanCompiled")
        assert (status, reason) == ("False", "TargetNotFound")
        assert message == (
            "spec.features[0].shared: FeatureCompute ads/live does not exist, or does not share with namespace feed: its owner can "
            "add feed to its annotation, with kubectl annotate featurecompute live -n ads tidegate.io/shared-with=feed"
        )
        assert read_condition(planned, "Ready")[0] == "False"
        # Consent may come at any time, so nothing is stalled.
        assert read_condition(planned, "Stalled")[0] == "False"

    def test_a_changed_origin_replaces_the_pods_and_an_event_says_whose_change_it_was(self) -> None:
        before = plan(user := a_user(shared("age")), an_origin())
        status = {**before.status, "observedGeneration": 1}
        user = user.parse({**user.dump(), "status": status})
        changed = [{"name": "age", "lookup": {"field": "profiles.age", "type": "float32"}}]

        same, after = plan(user, an_origin()), plan(user, an_origin(features=changed))

        assert same.events == ()
        assert same.apply == before.apply
        assert after.apply != before.apply
        (event,) = after.events
        assert event.reason == "PlanCompiled"
        assert "while this spec is unchanged: FeatureCompute ads/live has changed" in event.message
        edited = user.parse(overlaid(user.dump(), {"metadata": {"generation": 2}}))
        assert plan(edited, an_origin(features=changed)).events == ()


def test_too_many_sources_of_others_are_refused_before_all_are_copied() -> None:
    def an_origin_of_one(number: int) -> FeatureCompute:
        source = stream_source(f"s{number}", nats={"subject": f"events.{number}"})
        feature = {"name": "idle", "timeSince": {"source": f"s{number}"}}
        return a_feature_compute(
            f"o{number}", "feed", entities=[USER], request=[], sources=[source], features=[feature]
        )

    origins = {origin.key: origin for origin in map(an_origin_of_one, range(64))}
    looked_up: list[ObjectKey] = []

    def find(key: ObjectKey) -> FeatureCompute | None:
        looked_up.append(key)
        return origins.get(key)

    with pytest.raises(SharedFeatureError, match="there are more than 32 sources"):
        resolve_shared(a_user(*(shared(f"f{number}", "idle", f"o{number}") for number in range(64))), find)
    assert len(looked_up) == 33
    resolve_shared(a_user(*(shared(f"f{number}", "idle", f"o{number}") for number in range(32))), find)


def test_a_table_of_another_namespace_whose_host_would_get_our_credentials_is_refused_unless_declared() -> (
    None
):
    table = {
        "name": "profiles",
        "entity": "user",
        "table": {"uri": "https://files.ads.example/users.parquet"},
    }
    lookup = {"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-1"}}
    origin = an_origin(entities=[USER], sources=[table], features=[lookup], request=[])
    with pytest.raises(SharedFeatureError, match="whose host would get the credentials of this namespace"):
        resolve(a_user(shared("age")), origin)
    assert resolve(a_user(shared("age"), sources=[table]), origin).spec.features[0].is_resolved
    own = an_origin(namespace="feed", entities=[USER], sources=[table], features=[lookup], request=[])
    assert resolve(a_user(shared("age", owner="feed/live")), own).spec.sources[0].name == "profiles"
