"""`tidegate features list` and `explain`: what a feature is made of, what reads it, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.live_features import live_features_spec, stream_source
from builders.model_access import a_model_access
from builders.pipeline import a_loaded_inference, a_tensor
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.lineage import LineageKind, trace_readers, trace_reads
from tidegate.planning.features.operation_text import list_parameters, summarize_operation
from tidegate.reports.feature_lineage import FeatureExplanation
from tidegate.reports.feature_usage import FeatureUsage
from tidegate.services.feature_catalogue import FeatureCatalogue, explain_feature, find_usage, list_features

KEY = ObjectKey("ads", "user-features")


def a_catalogue(
    *features: FeatureCompute, models: dict[str, Any] | None = None, **changes: Any
) -> FeatureCatalogue:
    """Live features, and a pipeline whose models have these inputs."""
    items = features or (a_feature_compute(**live_features_spec()),)
    inferences = [
        a_loaded_inference(name, inputs)
        for name, inputs in (models or {"ctr": [a_tensor("idle_log"), a_tensor("age", "INT64")]}).items()
    ]
    parts = [{"inference": item.metadata.name, "as": f"p{item.metadata.name}"} for item in inferences]
    routes = [{"name": "home", "pipeline": {"models": parts, "features": "user-features"}}]
    usage = find_usage(items, [a_model_access("scene", routes=routes)], inferences)
    return FeatureCatalogue(**{"namespace": "ads", "features": items, "usage": usage, **changes})


def explain_profiles(tables: list[dict[str, Any]], **table: Any) -> FeatureExplanation:
    """Explain a feature of the table `profiles`, with these tables in the status."""
    spec = live_features_spec()
    spec["sources"][0]["table"] |= table
    item = a_feature_compute(status={"tables": tables}, **spec)
    return explain_feature(a_catalogue(item), KEY, "age")


class TestLineage:
    @pytest.mark.parametrize(
        ("feature", "steps"),
        [
            ("age", [(1, LineageKind.TABLE, "profiles.age")]),
            ("idle", [(1, LineageKind.STREAM, "clicks")]),
            ("ctr_1d", [(1, LineageKind.STREAM, "clicks.click")]),
            ("idle_log", [(1, LineageKind.FEATURE, "feature.idle"), (2, LineageKind.STREAM, "clicks")]),
            (
                "age_x_place",
                [
                    (1, LineageKind.FEATURE, "feature.age"),
                    (2, LineageKind.TABLE, "profiles.age"),
                    (1, LineageKind.REQUEST, "request.position"),
                ],
            ),
        ],
    )
    def test_a_feature_is_traced_to_its_sources(
        self, feature: str, steps: list[tuple[int, LineageKind, str]]
    ) -> None:
        spec = a_feature_compute(**live_features_spec()).spec

        traced = [
            (step.depth, step.origin.kind, step.origin.reference) for step in trace_reads(spec, feature)
        ]

        assert traced == steps

    def test_the_key_of_an_entity_is_none_of_its_sources(self) -> None:
        steps = trace_reads(a_feature_compute().spec, "user_x_city")

        assert [step.origin.kind for step in steps] == [LineageKind.KEY, LineageKind.TABLE]

    def test_what_is_not_declared_is_unknown(self) -> None:
        features = [{"name": "a", "log": {"field": "feature.b"}}, {"name": "c", "log": {"field": "gone.x"}}]
        spec = a_feature_compute(features=features).spec

        assert [
            (step.origin.kind, step.origin.owner) for name in "ac" for step in trace_reads(spec, name)
        ] == [
            (LineageKind.UNKNOWN, "b"),
            (LineageKind.UNKNOWN, "gone"),
        ]

    def test_a_tree_has_what_is_below_a_feature_once(self) -> None:
        """Two features that both read the two before them double the number of paths each time."""
        features: list[dict[str, Any]] = [
            {"name": f"{side}0", "hash": {"field": "profiles.city", "buckets": 9}} for side in "ab"
        ]
        for level in range(1, 60):
            below = [f"feature.{side}{level - 1}" for side in "ab"]
            features += [
                {"name": f"{side}{level}", "cross": {"fields": below, "buckets": 9}} for side in "ab"
            ]
        spec = a_feature_compute(features=features).spec

        reads, readers = trace_reads(spec, "a59"), trace_readers(spec, "a0")

        # a59 and the 116 features of levels 1 to 58 read two features each.
        assert len([step for step in reads if step.origin.kind is LineageKind.FEATURE]) == 2 * 117
        assert [step.repeated for step in reads if step.origin.reference == "feature.b57"] == [False, True]
        assert {step.origin.owner for step in readers} == {
            f"{side}{level}" for side in "ab" for level in range(1, 60)
        }

    def test_a_feature_that_reads_itself_ends(self) -> None:
        spec = a_feature_compute(features=[{"name": "a", "log": {"field": "feature.a"}}]).spec

        assert [(step.origin.owner, step.repeated) for step in trace_reads(spec, "a")] == [("a", True)]


@pytest.mark.parametrize(
    ("operation", "summary", "parameters"),
    [
        ({"lookup": {"field": "profiles.age", "type": "int64"}}, "lookup", ("default 0",)),
        (
            {"lookup": {"field": "profiles.v", "type": "float32", "length": 8}},
            "lookup of 8",
            ("default 0",),
        ),
        ({"hash": {"field": "profiles.city", "buckets": 9}}, "hash", ("buckets 9",)),
        (
            {"bucketize": {"field": "profiles.age", "boundaries": [18, 25.5]}},
            "bucketize",
            ("boundaries 18, 25.5",),
        ),
        ({"clip": {"field": "request.x", "min": -1, "max": 2.5}}, "clip -1 to 2.5", ()),
        ({"dwell": {"source": "clicks", "last": 5}}, "dwell of 5", ("limit 10m",)),
        ({"session": {"source": "clicks", "measure": "Events"}}, "session Events", ("gap 30m",)),
        (
            {"timeSince": {"source": "clicks", "filter": {"field": "clicks.click", "values": ["1", "2"]}}},
            "timeSince",
            ("default -1", "only clicks.click in 1, 2"),
        ),
        (
            {"window": {"field": "clicks.price", "aggregate": "Mean", "over": "1h", "every": "1m"}},
            "window Mean 1h every 1m",
            ("default 0",),
        ),
    ],
)
def test_an_operation_in_a_few_words(
    operation: dict[str, Any], summary: str, parameters: tuple[str, ...]
) -> None:
    (feature,) = a_feature_compute(features=[{"name": "a", **operation}]).spec.features

    assert summarize_operation(feature) == summary
    assert list_parameters(feature) == parameters


def test_filters_of_a_ratio_name_their_window() -> None:
    event_filter = {"field": "clicks.click", "values": ["1"]}
    window = {"field": "clicks.click", "aggregate": "Count", "over": "1h"}
    ratio = {"numerator": {**window, "filter": event_filter}, "denominator": window}
    (feature,) = a_feature_compute(features=[{"name": "a", "ratio": ratio}]).spec.features

    assert summarize_operation(feature) == "ratio Count 1h / Count 1h"
    assert list_parameters(feature) == ("prior 0", "weight 0", "numerator only clicks.click in 1")


class TestList:
    def test_features_have_their_type_and_their_users(self) -> None:
        report = list_features(a_catalogue())

        rows = {row.name: row for row in report.items}
        assert list(rows) == [item["name"] for item in live_features_spec()["features"]]
        assert (rows["hist_items"].dtype, rows["hist_items"].shape) == ("INT64", (-1, 50))
        assert rows["hist_items"].sources == ("stream clicks",)
        assert rows["idle"].read_by_features == ("idle_log", "idle_clip", "idle_bucket")
        assert rows["idle"].taken_by_models == ()
        (use,) = rows["idle_log"].taken_by_models
        assert (use.access, use.route, use.part, use.model) == ("ads/scene", "home", "pctr", "Inference ctr")
        lines = list(report.render_lines(wide=False))
        assert lines[1].split()[-3:] == ["age_x_place,", "Inference", "ctr"]
        assert next(line for line in lines if line.startswith("place")).split()[-1] == "-"
        assert list(report.object_names()) == ["featurecompute.tidegate.io/user-features"]

    def test_a_plan_that_does_not_compile_is_listed_with_its_error(self) -> None:
        broken = a_feature_compute("broken", features=[{"name": "a", "log": {"field": "feature.b"}}])

        report = list_features(a_catalogue(a_feature_compute(), broken))

        assert [row.name for row in report.items if row.feature_compute == "broken"] == ["a"]
        assert [row.dtype is None for row in report.items] == [True, False, False, False, False]
        (problem,) = report.plan_problems
        assert problem.feature_compute == "ads/broken"
        line = "featurecompute/ads/broken does not compile: spec.features[0].log.field"
        assert any(text.startswith(line) for text in report.render_lines(wide=False))

    def test_a_pipeline_that_does_not_compile_is_named(self) -> None:
        report = list_features(a_catalogue(models={"ctr": [a_tensor("other")]}))

        (problem,) = report.pipeline_problems
        assert "no model takes a feature of user-features" in problem.message
        assert list(report.render_lines(wide=False))[-1].startswith(
            "modelaccess/ads/scene route home: its models are unknown, because no model takes a feature of user-features"
        )

    def test_no_feature_is_unused_while_a_pipeline_is_unknown(self) -> None:
        unused = a_feature_compute("other")
        catalogue = a_catalogue(
            a_feature_compute(**live_features_spec()), unused, models={"ctr": [a_tensor("other")]}
        )

        lines = list(list_features(catalogue).render_lines(wide=False))

        users = {line.split()[1]: line.endswith("models unknown") for line in lines[1:-1]}
        assert users == {"user-features": True, "other": False}

    def test_without_the_right_to_read_users_none_is_denied(self) -> None:
        report = list_features(
            a_catalogue(usage=FeatureUsage(is_known=False), skipped=("modelaccesses: forbidden",))
        )

        lines = list(report.render_lines(wide=False))
        assert all(line.endswith("models unknown") for line in lines[1:-1])
        assert lines[-1] == "left out   modelaccesses: forbidden"


class TestExplain:
    def test_one_feature_with_its_sources_and_its_models(self) -> None:
        status = {
            "planHash": "0" * 64,
            "watermarks": [{"source": "clicks", "lagSeconds": 5, "refusedEvents": 20}],
            "conditions": [
                {
                    "type": kind,
                    "status": "False",
                    "reason": "EventsBehind",
                    "message": "source clicks",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
                for kind in ("Ready", "Fresh")
            ],
        }
        item = a_feature_compute(status=status, **live_features_spec())

        report = explain_feature(a_catalogue(item), KEY, "idle")

        assert report.plan_hash == compile_plan(item).hash
        (feature,) = report.features
        assert [step.reference for step in feature.reads] == ["clicks"]
        assert [step.reference for step in feature.read_by] == [
            "feature.idle_log",
            "feature.idle_clip",
            "feature.idle_bucket",
        ]
        # A model takes a feature that reads this one.
        assert [(use.feature, use.model) for use in feature.taken_by_models] == [
            ("idle_log", "Inference ctr")
        ]
        assert list(report.render_lines(wide=False)) == [
            f"featurecompute/ads/user-features: plan {report.plan_hash}, and the cluster has compiled {'0' * 64}",
            "  Fresh is False, EventsBehind: source clicks",
            "",
            "idle   FP32 [-1, 1]   timeSince, default -1",
            "  reads",
            "    clicks   stream",
            "  read by",
            "    feature.idle_log   log",
            "    feature.idle_clip   clip 0 to 3600",
            "    feature.idle_bucket   bucketize",
            "  input of",
            "    Inference ctr, route home of modelaccess/ads/scene through feature.idle_log",
            "",
            "SOURCE   KIND     ENTITY   STATE                                    ADDRESS"
            "                                         PARAMETERS",
            "clicks   stream   user     lags by at most 5s, 20 or more refused   "
            "subject events.clicks at nats://nats.ads:4222   ttl 168h, lateness 1m, maxEvents 256",
        ]

    @pytest.mark.parametrize(
        ("tables", "loaded", "state"),
        [
            (
                [{"source": "profiles", "keys": 20_000, "loadedAt": "2026-01-01T00:00:00Z"}],
                (20_000, "2026-01-01T00:00:00Z"),
                "loaded at 2026-01-01T00:00:00Z, 20,000 keys",
            ),
            (
                [{"source": "profiles", "loadedAt": "2026-01-01T00:00:00Z"}],
                (None, "2026-01-01T00:00:00Z"),
                "loaded at 2026-01-01T00:00:00Z",
            ),
            (
                [{"source": "items", "keys": 3, "loadedAt": "2026-01-01T00:00:00Z"}],
                (None, None),
                "not reported",
            ),
        ],
    )
    def test_a_refreshed_table_has_when_it_was_loaded_and_its_keys(
        self, tables: list[dict[str, Any]], loaded: tuple[int | None, str | None], state: str
    ) -> None:
        report = explain_profiles(tables, refresh="10m")

        (source,) = report.sources
        cells = (
            "profiles   table   user     " + state,
            "file:///models/tables/users.parquet",
            "refresh 10m, minKeysPercent 50",
        )
        assert list(report.render_lines(wide=False))[-1] == "   ".join(cells)
        assert source.refreshed
        shown = source.dump()
        assert (shown.get("keys"), shown.get("loadedAt")) == loaded

    def test_a_bound_of_the_keys_is_among_the_parameters_of_a_table(self) -> None:
        (bounded,) = explain_profiles([], refresh="10m", maxKeysPercent=200).sources
        assert bounded.parameters == ("refresh 10m", "minKeysPercent 50", "maxKeysPercent 200")

    def test_a_table_without_refresh_has_no_state(self) -> None:
        before = [{"source": "profiles", "keys": 3, "loadedAt": "2026-01-01T00:00:00Z"}]
        report = explain_profiles(before)

        assert list(report.render_lines(wide=False))[-2:] == [
            "SOURCE     KIND    ENTITY   STATE   ADDRESS                               PARAMETERS",
            "profiles   table   user     -       file:///models/tables/users.parquet   -",
        ]
        assert (report.sources[0].refreshed, report.sources[0].loaded_at) == (False, None)

    def test_a_feature_is_input_of_no_model_only_if_all_pipelines_are_readable(self) -> None:
        readable, unknown = a_catalogue(), a_catalogue(models={"ctr": [a_tensor("other")]})

        assert "  input of no model" in explain_feature(readable, KEY, "place").render_lines(wide=False)
        lines = list(explain_feature(unknown, KEY, "place").render_lines(wide=False))
        assert "  input of no model" not in lines
        assert lines[lines.index("  input of") + 1] == "    models unknown"

    def test_all_features_of_a_plan_that_does_not_compile(self) -> None:
        broken = a_feature_compute(
            sources=[stream_source()], features=[{"name": "a", "log": {"field": "feature.b"}}]
        )

        report = explain_feature(a_catalogue(broken), KEY, "")

        assert (report.plan_hash, report.sources) == (None, ())
        lines = list(report.render_lines(wide=False))
        assert lines[0].startswith("featurecompute/ads/user-features: the plan does not compile: spec.feat")
        assert "    feature.b   unknown" in lines

    @pytest.mark.parametrize(
        ("name", "feature", "message"),
        [
            (
                "user-feature",
                "",
                'FeatureCompute "user-feature" not found in namespace ads; similar names: ads/user-features',
            ),
            (
                "age",
                "",
                'FeatureCompute "age" not found in namespace ads; it is a feature: ads/user-features.age',
            ),
            ("zzz", "", 'FeatureCompute "zzz" not found in namespace ads; there is ads/user-features'),
            (
                "user-features",
                "idle_lag",
                'FeatureCompute ads/user-features has no feature "idle_lag"; similar names: idle_log, idle_',
            ),
        ],
    )
    def test_unknown_names_have_suggestions(self, name: str, feature: str, message: str) -> None:
        with pytest.raises(PermanentError) as refused:
            explain_feature(a_catalogue(), ObjectKey("ads", name), feature)

        assert str(refused.value).startswith(message)

    def test_the_same_name_of_another_namespace_is_suggested_with_it(self) -> None:
        with pytest.raises(PermanentError) as refused:
            explain_feature(a_catalogue(), ObjectKey("feed", "user-features"), "age")

        assert str(refused.value) == (
            'FeatureCompute "user-features" not found in namespace feed; similar names: ads/user-features'
        )

    def test_a_name_in_several_namespaces_needs_one(self) -> None:
        items = [a_feature_compute(namespace=namespace) for namespace in ("ads", "feed")]
        with pytest.raises(PermanentError) as refused:
            explain_feature(a_catalogue(*items), ObjectKey("", "user-features"), "")

        assert str(refused.value) == (
            "there are 2 FeatureComputes with that name: use ads/user-features or feed/user-features"
        )
        assert explain_feature(a_catalogue(*items), KEY, "age").feature_compute == "ads/user-features"
