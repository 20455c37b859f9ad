"""Compiling features over events, over fields of the request and over other features."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.live_features import live_features_spec, stream_source
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.resources.feature_compute import hash_features_source
from tidegate_dataplane import contract
from tidegate_dataplane.contract import FeaturePlan, FieldRef, ValueOrigin

CLICK: Any = {"field": "clicks.click", "aggregate": "Count", "over": "1h"}


def plan_of(*features: dict[str, Any], **spec: Any) -> FeaturePlan:
    """The plan of a spec with the stream clicks, in which `features` replace those of the builder."""
    changes = {**spec, **({"features": list(features)} if features else {})}
    return compile_plan(a_feature_compute(**live_features_spec(**changes)))


def named(**operation: Any) -> dict[str, Any]:
    return {"name": "f", **operation}


def test_each_operation_has_an_output_of_its_type_and_length() -> None:
    outputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in plan_of().outputs}

    assert outputs == {
        "age": ("INT64", (-1, 1)),
        "hist_items": ("INT64", (-1, 50)),
        "clicks_1h": ("INT64", (-1, 1)),
        "ctr_1d": ("FP32", (-1, 1)),
        "idle": ("FP32", (-1, 1)),
        "idle_log": ("FP32", (-1, 1)),
        "idle_clip": ("FP32", (-1, 1)),
        "idle_bucket": ("INT64", (-1, 1)),
        "place": ("INT64", (-1, 1)),
        "age_x_place": ("INT64", (-1, 1)),
    }


def test_inputs_are_the_keys_and_then_the_fields_of_the_request_that_are_read() -> None:
    request = [{"name": "position", "type": "int64"}, {"name": "unread", "type": "string"}]
    plan = plan_of(request=request)

    assert [(tensor.name, tensor.dtype) for tensor in plan.inputs] == [
        ("user_id", "INT64"),
        ("position", "INT64"),
    ]
    assert [field.name for field in plan.request] == ["position"]


def test_a_stream_is_in_the_plan_with_its_bounds_in_milliseconds() -> None:
    source = stream_source(lateness="0s", ttl="48h", maxEvents=64, nats={"secretName": "events"})
    (stream,) = plan_of(named(timeSince={"source": "clicks"}), sources=[source]).streams

    assert (stream.lateness_ms, stream.ttl_ms, stream.max_events) == (0, 172_800_000, 64)
    assert (stream.entity, stream.event_time, stream.secret_name) == ("user", "ts", "events")
    assert stream.nats == contract.NatsEvents(
        url="nats://nats.ads:4222", stream="EVENTS", subject="events.clicks", secret="events"
    )
    assert [(field.name, field.type.value) for field in stream.fields][-1] == ("page", "string")


def test_a_topic_is_read_without_a_group() -> None:
    source = stream_source(kafka={"tls": True, "sasl": "PLAIN", "secretName": "events"})
    (stream,) = plan_of(named(window=CLICK), sources=[source]).streams

    assert stream.nats is None
    assert stream.kafka == contract.KafkaOrder(
        servers=("kafka.ads:9092",),
        topic="clicks",
        secret="events",
        tls=True,
        sasl=contract.SaslMechanism.PLAIN,
    )


def test_a_stream_and_its_entity_that_no_feature_reads_are_left_out() -> None:
    entities = [
        {"name": "user", "key": "user_id", "type": "int64"},
        {"name": "item", "key": "item_id", "type": "int64"},
    ]
    plan = plan_of(named(hash={"field": "item.item_id", "buckets": 5}), entities=entities)

    assert (plan.streams, [tensor.name for tensor in plan.inputs]) == ((), ["item_id"])


def test_a_stream_that_only_time_since_reads_brings_its_entity() -> None:
    plan = plan_of(named(timeSince={"source": "clicks"}))

    assert [entity.name for entity in plan.entities] == ["user"]
    assert plan.features == (contract.TimeSince(name="f", entity="user", stream="clicks", default=-1.0),)


def test_sessions_dwell_times_and_conditions_are_compiled() -> None:
    pages_only = {"field": "clicks.page", "values": ["home", "search"]}
    plan = plan_of(
        {"name": "a", "session": {"source": "clicks", "measure": "Events"}},
        {"name": "b", "session": {"source": "clicks", "measure": "Seconds", "gap": "5m"}},
        {"name": "c", "dwell": {"source": "clicks", "last": 3}},
        {"name": "d", "timeSince": {"source": "clicks", "filter": pages_only}},
        {"name": "e", "sequence": {"field": "clicks.item_id", "last": 2, "filter": pages_only}},
        {"name": "f", "window": {**CLICK, "filter": {"field": "clicks.click", "values": ["1"]}}},
    )

    stream: dict[str, Any] = {"entity": "user", "stream": "clicks"}
    pages = contract.EventFilter(column="page", values=("home", "search"))
    events, seconds = contract.SessionMeasure.EVENTS, contract.SessionMeasure.SECONDS
    assert plan.features[:4] == (
        contract.EventSession(name="a", **stream, gap_ms=1_800_000, measure=events),
        contract.EventSession(name="b", **stream, gap_ms=300_000, measure=seconds),
        contract.Dwell(name="c", **stream, last=3, limit_ms=600_000),
        contract.TimeSince(name="d", **stream, filter=pages),
    )
    sequence, window = plan.features[4:]
    assert isinstance(sequence, contract.EventSequence)
    assert sequence.filter == pages
    assert isinstance(window, contract.Window)
    assert window.window.filter == contract.EventFilter(column="click", values=("1",))
    assert [(output.dtype, output.shape[1]) for output in plan.outputs[:4]] == [
        ("INT64", 1),
        ("FP32", 1),
        ("FP32", 3),
        ("FP32", 1),
    ]


def test_references_name_where_their_values_come_from() -> None:
    features = {feature.name: feature for feature in plan_of().features}

    cross, window = features["age_x_place"], features["clicks_1h"]
    assert isinstance(cross, contract.Cross)
    assert cross.fields == (
        FieldRef(column="age", origin=ValueOrigin.FEATURE),
        FieldRef(column="position", origin=ValueOrigin.REQUEST),
    )
    assert isinstance(window, contract.Window)
    assert window.window == contract.WindowRef(
        field=FieldRef(entity="user", column="click", origin=ValueOrigin.STREAM, stream="clicks"),
        aggregate=contract.Aggregate.SUM,
        over_ms=3_600_000,
        every_ms=60_000,
    )


@pytest.mark.parametrize(
    ("field", "aggregate", "dtype"),
    [
        ("click", "Count", "INT64"),
        ("page", "Count", "INT64"),
        ("page", "Distinct", "INT64"),
        ("price", "Distinct", "INT64"),
        ("click", "Mean", "FP32"),
        ("click", "Sum", "INT64"),
        ("click", "Min", "INT64"),
        ("price", "Max", "FP32"),
        ("price", "Last", "FP32"),
    ],
)
def test_a_window_has_the_type_of_its_aggregate_and_field(field: str, aggregate: str, dtype: str) -> None:
    window = {"field": f"clicks.{field}", "aggregate": aggregate, "over": "1h"}
    assert plan_of(named(window=window)).outputs[0].dtype == dtype


@pytest.mark.parametrize(
    ("field", "buckets", "dtype"),
    [("item_id", None, "INT64"), ("price", None, "FP32"), ("price", 8, "INT64"), ("page", 8, "INT64")],
)
def test_a_sequence_has_the_type_of_its_field_unless_it_is_hashed(
    field: str, buckets: int | None, dtype: str
) -> None:
    sequence = {
        "field": f"clicks.{field}",
        "last": 3,
        **({"buckets": buckets} if buckets is not None else {}),
    }
    assert plan_of(named(sequence=sequence)).outputs[0].dtype == dtype


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "sequence of a string",
        {"sequence": {"field": "clicks.page", "last": 3}},
        "sequence.buckets",
        "'clicks.page' is a string",
    ),
    (
        "sequence beyond what is stored",
        {"sequence": {"field": "clicks.item_id", "last": 257}},
        "sequence.last",
        "maxEvents of stream clicks, 256",
    ),
    (
        "fraction as padding of whole numbers",
        {"sequence": {"field": "clicks.item_id", "last": 3, "pad": "0.5"}},
        "sequence.pad",
        "whole number",
    ),
    (
        "fraction as default of whole numbers",
        {"window": {**CLICK, "aggregate": "Max", "default": "0.5"}},
        "window.default",
        "whole number",
    ),
    (
        "window beyond what is stored",
        {"window": {**CLICK, "over": "169h"}},
        "window.over",
        "ttl of stream clicks, 168h",
    ),
    (
        "window whose beginning is not stored any more",
        {"window": {**CLICK, "over": "168h", "every": "1h"}},
        "window.over",
        "over and every together .* ttl of stream clicks, 168h",
    ),
    (
        "sum of a string",
        {"window": {**CLICK, "field": "clicks.page", "aggregate": "Sum"}},
        "window.aggregate",
        "Count or Distinct",
    ),
    (
        "sum of a string in a ratio",
        {"ratio": {"numerator": {**CLICK, "field": "clicks.page", "aggregate": "Sum"}, "denominator": CLICK}},
        "ratio.numerator.aggregate",
        "Count or Distinct",
    ),
    (
        "condition on another stream",
        {"window": {**CLICK, "filter": {"field": "profiles.age", "values": ["1"]}}},
        "window.filter.field",
        "source profiles is a table",
    ),
    (
        "condition on a float",
        {
            "sequence": {
                "field": "clicks.item_id",
                "last": 3,
                "filter": {"field": "clicks.price", "values": ["1"]},
            }
        },
        "sequence.filter.field",
        "is a float64",
    ),
    (
        "condition on what is no number",
        {"timeSince": {"source": "clicks", "filter": {"field": "clicks.click", "values": ["1", "yes"]}}},
        "timeSince.filter.values[1]",
        "'yes' is no whole number",
    ),
    (
        "dwell times beyond what is stored",
        {"dwell": {"source": "clicks", "last": 257}},
        "dwell.last",
        "maxEvents of stream clicks, 256",
    ),
    (
        "session of a table",
        {"session": {"source": "profiles", "measure": "Events"}},
        "session.source",
        "source profiles is a table",
    ),
    (
        "undeclared field of a stream",
        {"window": {**CLICK, "field": "clicks.clik"}},
        "window.field",
        "no field 'clik'; its fields are: item_id, click, price, page",
    ),
    (
        "window over a table",
        {"window": {**CLICK, "field": "profiles.age"}},
        "window.field",
        "source profiles is a table, .*; the streams are: clicks",
    ),
    (
        "sequence of a key",
        {"sequence": {"field": "user.user_id", "last": 3}},
        "sequence.field",
        "there is no source user, .*; the streams are: clicks",
    ),
    (
        "time since a row of a table",
        {"timeSince": {"source": "profiles"}},
        "timeSince.source",
        "source profiles is a table",
    ),
    (
        "lookup of events",
        {"lookup": {"field": "clicks.click", "type": "int64"}},
        "lookup.field",
        "read it by sequence, window or ratio",
    ),
    (
        "hash of events",
        {"hash": {"field": "clicks.click", "buckets": 2}},
        "hash.field",
        "source clicks is a stream",
    ),
    (
        "bucket of events",
        {"bucketize": {"field": "clicks.click", "boundaries": [1]}},
        "bucketize.field",
        "source clicks is a stream",
    ),
    (
        "cross of events",
        {"cross": {"fields": ["user.user_id", "clicks.click"], "buckets": 2}},
        "cross.fields[1]",
        "source clicks is a stream",
    ),
    (
        "field of the request that is not declared",
        {"log": {"field": "request.place"}},
        "log.field",
        "its names are: position, query",
    ),
    ("feature of itself", {"log": {"field": "feature.f"}}, "log.field", "only those above it"),
    ("feature of nothing", {"log": {"field": "feature.g"}}, "log.field", "does not exist; above are: many"),
    (
        "feature with several values",
        {"hash": {"field": "feature.many", "buckets": 2}},
        "hash.field",
        "has 3 values",
    ),
    (
        "log of a column",
        {"log": {"field": "profiles.age"}},
        "log.field",
        "name request.<name> or feature.<name>",
    ),
    ("log of a string", {"log": {"field": "request.query"}}, "log.field", "is a string"),
    (
        "bucket of a string",
        {"bucketize": {"field": "request.query", "boundaries": [1]}},
        "bucketize.field",
        "is a string",
    ),
    (
        "fractions around whole numbers",
        {"clip": {"field": "request.position", "min": 0, "max": 1.5}},
        "clip.max",
        "whole numbers",
    ),
]


@pytest.mark.parametrize("names", ["aa", "aba", "abca"])
def test_a_cycle_between_features_is_refused_by_field(names: str) -> None:
    """Each feature reads the next one, and the last one the first."""
    pairs = itertools.pairwise(names)
    features = [{"name": name, "log": {"field": f"feature.{read}"}} for name, read in pairs]

    with pytest.raises(
        InvalidSpecError, match=f"feature '{names[1]}' is declared .*only those above it"
    ) as caught:
        plan_of(*features)
    assert caught.value.path == "spec.features[0].log.field"


@pytest.mark.parametrize(
    ("operation", "path", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_an_operation_cannot_read_is_refused(operation: dict[str, Any], path: str, says: str) -> None:
    request = [{"name": "position", "type": "int64"}, {"name": "query", "type": "string"}]
    many = {"name": "many", "sequence": {"field": "clicks.item_id", "last": 3}}

    with pytest.raises(InvalidSpecError, match=says) as caught:
        plan_of(many, named(**operation), request=request)
    assert caught.value.path == f"spec.features[1].{path}"


USER = {"name": "user", "key": "user_id", "type": "int64"}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"request": [{"name": "user_id", "type": "int64"}]}, "spec.request[0].name"),
        ({"request": [{"name": "f", "type": "int64"}]}, "spec.features[0].name"),
        (
            {"request": [{"name": "x", "type": "int64"}, {"name": "as_of", "type": "int64"}]},
            "spec.request[1].name",
        ),
        ({"entities": [{**USER, "key": "as_of"}]}, "spec.entities[0].key"),
    ],
)
def test_a_name_of_two_tensors_or_of_the_time_is_refused(spec: dict[str, Any], path: str) -> None:
    name = spec.get("request", [{"name": "x"}])[0]["name"]
    request = spec.get("request", [{"name": "x", "type": "int64"}])
    features = [
        named(hash={"field": f"request.{name}", "buckets": 2}),
        {"name": "g", "timeSince": {"source": "clicks"}},
    ]

    with pytest.raises(InvalidSpecError, match="choose another name") as caught:
        plan_of(*features, **{**spec, "request": request})
    assert caught.value.path == path


def test_dead_letters_are_in_the_plan_and_replace_pods_and_are_not_in_its_hash() -> None:
    idle = named(timeSince={"source": "clicks"})
    spec = live_features_spec(
        sources=[stream_source(deadLetters={"subject": "dead.clicks"})], features=[idle]
    )
    features = a_feature_compute(**spec)
    plan, without = compile_plan(features), plan_of(idle, sources=[stream_source()])

    reasons = tuple(reason for reason in contract.RefusalReason if reason != "TooLate")
    assert plan.dead_letters == (
        contract.EventDeadLetters(source="clicks", target="dead.clicks", reasons=reasons),
    )
    assert plan.hash == without.hash
    assert without.dead_letters == ()
    assert "deadLetters" not in without.to_json()
    assert hash_features_source(features, plan) != hash_features_source(features, without)


def test_a_redis_is_in_the_plan_and_not_in_its_hash() -> None:
    idle = named(timeSince={"source": "clicks"})
    redis = {"address": "redis.ads:6379", "tls": True, "secretName": "ads-redis", "timeout": "20ms"}
    plan = plan_of(idle, store={"redis": redis})

    assert plan.store == contract.RedisStore(
        address="redis.ads:6379", secret="ads-redis", tls=True, key_prefix="ads/user-features", timeout_ms=20
    )
    assert plan_of(idle, store={"redis": {**redis, "keyPrefix": "eu/ads"}}).store != plan.store
    assert (
        plan.hash == plan_of(idle).hash == plan_of(idle, store={"redis": {"address": "other.ads:6379"}}).hash
    )
    assert plan_of(idle, store={"embedded": {}}).to_json() == plan_of(idle).to_json()


def test_a_redis_for_streams_that_no_feature_reads_is_not_in_the_plan() -> None:
    age = named(lookup={"field": "profiles.age", "type": "int64"})

    assert plan_of(age, store={"redis": {"address": "redis.ads:6379"}}).store is None


def test_the_output_that_names_streams_is_reserved_where_there_are_streams() -> None:
    name = "tidegate_not_current"
    feature = {"name": name, "timeSince": {"source": "clicks"}}

    for spec in ({}, {"store": {"redis": {"address": "redis.ads:6379"}}}):
        with pytest.raises(InvalidSpecError, match="choose another name") as caught:
            plan_of(feature, **spec)
        assert caught.value.path == "spec.features[0].name"
    lookup = {"name": name, "lookup": {"field": "profiles.age", "type": "int64"}}
    assert compile_plan(a_feature_compute(features=[lookup])).outputs[0].name == name


def test_a_key_of_two_entities_that_are_read_is_refused() -> None:
    cross = {"fields": ["user.user_id", "friend.user_id"], "buckets": 5}

    with pytest.raises(InvalidSpecError, match="two inputs") as caught:
        plan_of(named(cross=cross), entities=[USER, {**USER, "name": "friend"}])
    assert caught.value.path == "spec.entities[1].key"


def test_without_streams_a_feature_may_be_named_as_of() -> None:
    feature = {"name": "as_of", "hash": {"field": "user.user_id", "buckets": 5}}

    assert plan_of(feature, sources=[]).outputs[0].name == "as_of"
