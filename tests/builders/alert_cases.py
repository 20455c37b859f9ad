"""Series that make each alert fire, and clear again, and series beside them at which it has to stay quiet; a sample a minute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Case:
    """`series`: what goes wrong and then well again, in promtool's notation. `quiet`: nearly as much, and no reason to tell.

    `labels`: those of the alert besides its name and severity. It fires at `fires` minutes, and not any more at `clears`.
    """

    alert: str
    series: Mapping[str, str]
    quiet: Mapping[str, str]
    fires: int
    clears: int
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    what: str = ""

    @property
    def window(self) -> str:
        """Of alerts with several rules, which one."""
        return self.labels.get("window", "")

    def __str__(self) -> str:
        return "-".join(
            part for part in (self.alert.removeprefix("Tidegate"), self.window, self.what) if part
        )


CTR = {"namespace": "ads", "inference": "ctr"}
_CLUSTER = 'envoy_cluster_name="inference/ads/ctr/grpc",pod="gateway-0"'
_PER_MINUTE = 600
_RQ_TOTAL = f"envoy_cluster_upstream_rq_total{{{_CLUSTER}}}"


def climbing(*parts: tuple[int, int]) -> str:
    """A counter that grows by so much a minute for so many minutes, part after part."""
    text, value = ["0"], 0
    for minutes, step in parts:
        text.append(f"{value + step}+{step}x{minutes - 1}")
        value += minutes * step
    return " ".join(text)


def traffic(*parts: tuple[int, int, int]) -> dict[str, str]:
    """600 requests a minute for so many minutes, of which so many are answered, and so many within 25 ms; the others take 500 ms.

    The Inference promises 30 ms.
    """
    answered = climbing(*((minutes, each) for minutes, each, _ in parts))
    fast = climbing(*((minutes, each) for minutes, _, each in parts))
    minutes = sum(part[0] for part in parts)
    bucket = f"envoy_cluster_upstream_rq_time_bucket{{{_CLUSTER}"
    promised = 'namespace="ads",inference="ctr"'
    return {
        _RQ_TOTAL: climbing((minutes, _PER_MINUTE)),
        f'envoy_cluster_upstream_rq_xx{{{_CLUSTER},envoy_response_code_class="2"}}': answered,
        f'{bucket},le="25"}}': fast,
        f'{bucket},le="50"}}': fast,
        f'{bucket},le="+Inf"}}': answered,
        f"tidegate_inference_slo_objective_ratio{{{promised}}}": f"0.99x{minutes}",
        f'tidegate_inference_slo_bucket_share{{{promised},le="25"}}': f"0.8x{minutes}",
        f'tidegate_inference_slo_bucket_share{{{promised},le="50"}}': f"0.2x{minutes}",
    }


def failing_late(minutes: int, failed: int) -> dict[str, str]:
    """The same where so many of the 600 are answered with a failure, each of them late."""
    well = traffic((minutes, 600 - failed, 600 - failed))
    return {
        name: climbing((minutes, 600)) if 'le="+Inf"' in name else values for name, values in well.items()
    }


def refused_by_the_model(minutes: int, status: int) -> dict[str, str]:
    """The same where the model answers half of the requests with this status, and all in time."""
    answers = f'envoy_cluster_upstream_rq{{{_CLUSTER},envoy_response_code="{status}"}}'
    return {
        name: climbing((minutes, 300)) if "_xx" in name else values
        for name, values in traffic((minutes, 600, 600)).items()
    } | {answers: climbing((minutes, 300))}


def with_changes_of_leader(series: Mapping[str, str]) -> dict[str, str]:
    """The same where nobody tells of promises at the turn of each half hour."""

    def told(values: str) -> str:
        value, _, minutes = values.partition("x")
        return " ".join(f"stale _ {value}x27" for _ in range(int(minutes) // 30))

    return {name: told(each) if "_slo_" in name else each for name, each in series.items()}


def first_asked(series: Mapping[str, str]) -> dict[str, str]:
    """The same after an hour in which nobody asked, and Envoy showed nothing of answers."""

    def later(name: str, values: str) -> str:
        if "_slo_" in name:
            return f"{values.partition('x')[0]}x180"
        return f"0x59 {values}" if "rq_total" in name else f"_x61 {values.removeprefix('0 ')}"

    return {name: later(name, values) for name, values in series.items()}


def seen_again(series: Mapping[str, str]) -> dict[str, str]:
    """The same after an hour without Prometheus: of a gateway that has answered a million for days, one in a hundred of them late."""

    def later(name: str, values: str) -> str:
        if "_slo_" in name:
            return f"{values.partition('x')[0]}x180"
        before = 990_000 if 'le="25"' in name or 'le="50"' in name else 1_000_000
        return "_x60 " + re.sub(r"(?<!\S)\d+", lambda value: str(int(value[0]) + before), values)

    return {name: later(name, values) for name, values in series.items()} | {
        'envoy_server_uptime{pod="gateway-0"}': "_x60 900000+60x120"
    }


def promising_minutes(series: Mapping[str, str]) -> dict[str, str]:
    """The same where 25 ms stand for ten minutes and 50 ms for half an hour, as Prometheus 3 writes them."""
    in_buckets = {'le="25"': 'le="600000.0"', 'le="50"': 'le="1.8e+06"'}
    in_promises = {'le="25"': 'le="600000"', 'le="50"': 'le="1800000"'}

    def renamed(name: str) -> str:
        for old, new in (in_buckets if "bucket{" in name else in_promises).items():
            name = name.replace(old, new)
        return name

    return {renamed(name): values for name, values in series.items()}


def _budget(window: str, answered: int, fires: int, bad: int, well: int) -> Case:
    return Case(
        "TidegateInferenceBudgetBurn",
        traffic((bad, answered, answered), (well, 600, 600)),
        traffic((bad + well, 597, 597)),
        fires,
        bad + well,
        {**CTR, "window": window},
        "unanswered",
    )


def _unserved(route: str, what: str = "") -> Case:
    def refused(protocol: str, why: str) -> str:
        return f'envoy_tidegate_refused{{route="{route}/{protocol}",reason="{why}"}}'

    return Case(
        "TidegateRouteUnserved",
        {refused("grpc", "direct_response"): climbing((20, 6), (20, 0))},
        {
            refused("grpc", "direct_response"): climbing((3, 6), (37, 0)),
            refused("http", "via_upstream"): climbing((40, 6)),
        },
        15,
        40,
        {"route": f"{route}/grpc"},
        what,
    )


READY = 'tidegate_object_ready{kind="%s",namespace="ads",name="ctr",reason="%s",instance="c0"}'
QUEUE = {"queue": "inference"}
GPU_A = {"pool": "gpu-a"}
LIVE_CLICKS = {"namespace": "ads", "features": "live", "source": "clicks"}


def _lag_of(pod: str) -> str:
    return f'tidegate_agent_events_lag_seconds{{namespace="ads",pod="fc-{pod}",source="clicks"}}'


def _serving(pod: str) -> str:
    return f'tidegate_agent_serving_version{{namespace="ads",pod="fc-{pod}"}}'


def _counted_events(counter: str, matchers: str = "", *, source: str = "clicks") -> str:
    """The counter of one pod of the FeatureCompute `live`."""
    labels = f'namespace="ads",pod="fc-live-6d5f-x1",source="{source}"{matchers}'
    return f"tidegate_agent_events_{counter}_total{{{labels}}}"


def _read_keys(origin: str, *, pod: str = "live-6d5f-x1") -> str:
    """The counter of one process of a FeatureCompute with a Redis."""
    return f'tidegate_feature_store_keys_total{{namespace="ads",pod="fc-{pod}",origin="{origin}"}}'


def _refused_table(reason: str, *, pod: str = "x1", source: str = "profiles") -> str:
    """Whether a pod of the FeatureCompute `live` refuses the table."""
    labels = f'namespace="ads",pod="fc-live-6d5f-{pod}",source="{source}",reason="{reason}"'
    return f"tidegate_agent_table_refused{{{labels}}}"


_CASES = (
    _budget("1h", 300, 30, 60, 60),
    _budget("6h", 540, 60, 90, 60),
    _budget("1d", 576, 90, 100, 60),
    _budget("3d", 588, 220, 250, 220),
    Case(
        "TidegateInferenceBudgetBurn",
        traffic((60, 600, 300), (60, 600, 600)),
        traffic((120, 600, 597)),
        30,
        120,
        {**CTR, "window": "1h"},
        "slow",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        failing_late(60, 120) | {_RQ_TOTAL: climbing((60, 600), (60, 0))},
        # 8 in 100, which are no 16 for being late besides.
        failing_late(120, 48),
        30,
        120,
        {**CTR, "window": "1h"},
        "failing-late",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        # A model that is not there, whatever HTTP calls it.
        refused_by_the_model(60, 404) | {_RQ_TOTAL: climbing((60, 600), (60, 0))},
        refused_by_the_model(120, 400),
        30,
        120,
        {**CTR, "window": "1h"},
        "refused-by-the-model",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        first_asked(traffic((60, 300, 300), (60, 600, 600))),
        # Nothing was bad: Envoy shows answers once there are some.
        first_asked(traffic((120, 600, 600))),
        90,
        180,
        {**CTR, "window": "1h"},
        "first-asked",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        seen_again(traffic((60, 300, 300), (60, 600, 600))),
        # Nothing was bad since: what was late before is of days.
        seen_again(traffic((120, 600, 600))),
        90,
        180,
        {**CTR, "window": "1h"},
        "seen-again",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        promising_minutes(traffic((60, 600, 300), (60, 600, 600))),
        promising_minutes(traffic((120, 600, 597))),
        30,
        120,
        {**CTR, "window": "1h"},
        "minutes",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        # A change of leader every half an hour: nobody tells of the objective for two minutes.
        with_changes_of_leader(traffic((150, 540, 540), (90, 600, 600))),
        with_changes_of_leader(traffic((240, 597, 597))),
        130,
        239,
        {**CTR, "window": "6h"},
        "changes-of-leader",
    ),
    Case(
        "TidegateInferenceBudgetBurn",
        # Prometheus 3 writes bounds as 25.0.
        {
            name.replace('le="25"}', 'le="25.0"}')
            if "bucket{" in name and "upstream" in name
            else name: values
            for name, values in traffic((60, 600, 300), (60, 600, 600)).items()
        },
        # Six requests, five of which failed: too few to wake somebody.
        {
            name: "0x10 1 2 3 4 5 6x110"
            if "rq_total" in name
            else "0x110 1x20"
            if "envoy" in name
            else values
            for name, values in traffic((120, 600, 600)).items()
        },
        30,
        120,
        {**CTR, "window": "1h"},
        "new-bounds",
    ),
    _unserved("access/ads/ctr/default"),
    _unserved("features/ads/plan/features", "features"),
    Case(
        "TidegateInferenceNotReady",
        {READY % ("Inference", "LoadFailed"): "0x30", READY % ("Inference", "AllReplicasReady"): "_x30 1x30"},
        {READY % ("Inference", "LoadFailed"): "0x10 1x50", READY % ("ModelAccess", "NoTargets"): "0x60"},
        25,
        50,
        {"kind": "Inference", "namespace": "ads", "name": "ctr"},
    ),
    Case(
        "TidegateInferenceNotReady",
        # Between two leaders nobody tells: it goes on.
        {READY % ("Inference", "LoadFailed"): "0x20 stale _x2 0x7 1x29"},
        {READY % ("Inference", "LoadFailed"): "0x10 stale _x2 1x46"},
        22,
        50,
        {"kind": "Inference", "namespace": "ads", "name": "ctr"},
        "change-of-leader",
    ),
    Case(
        "TidegateObjectNotReady",
        {READY % ("ModelAccess", "NoTargets"): "0x30 1x30"},
        {READY % ("ModelAccess", "NoTargets"): "0x10 1x50", READY % ("Inference", "LoadFailed"): "0x60"},
        25,
        50,
        {"kind": "ModelAccess", "namespace": "ads", "name": "ctr"},
    ),
    Case(
        "TidegateObjectStalled",
        {
            'tidegate_object_stalled{kind="Inference",namespace="ads",name="ctr",reason="LoadFailed"}': "1x80 0x40"
        },
        {
            'tidegate_object_stalled{kind="Inference",namespace="ads",name="ctr",reason="LoadFailed"}': "1x50 0x70"
        },
        75,
        110,
        {"kind": "Inference", "namespace": "ads", "name": "ctr"},
    ),
    Case(
        "TidegateModelVersionBehind",
        {
            'tidegate_inference_version{namespace="ads",inference="ctr",state="target"}': "4x80",
            'tidegate_inference_version{namespace="ads",inference="ctr",state="serving"}': "3x45 4x34",
        },
        {
            'tidegate_inference_version{namespace="ads",inference="ctr",state="target"}': "4x80",
            'tidegate_inference_version{namespace="ads",inference="ctr",state="serving"}': "3x20 4x59",
        },
        40,
        70,
        CTR,
    ),
    Case(
        "TidegateNearlineLag",
        {
            'tidegate_agent_nearline_backlog{namespace="ads",pod="embed-6d5f-x1"}': "90000x40 10x40",
            'tidegate_agent_nearline_backlog{namespace="ads",pod="embed-6d5f-x2"}': "90000x40 10x40",
            'tidegate_agent_nearline_results_total{namespace="ads",pod="embed-6d5f-x1"}': climbing((80, 600)),
            'tidegate_agent_nearline_results_total{namespace="ads",pod="embed-6d5f-x2"}': climbing((80, 600)),
        },
        {
            'tidegate_agent_nearline_backlog{namespace="ads",pod="embed-6d5f-x1"}': "9000x80",
            'tidegate_agent_nearline_results_total{namespace="ads",pod="embed-6d5f-x1"}': climbing((80, 660)),
            # Nothing to do, and nothing done.
            'tidegate_agent_nearline_backlog{namespace="ads",pod="idle-6d5f-x1"}': "0x80",
            'tidegate_agent_nearline_results_total{namespace="ads",pod="idle-6d5f-x1"}': "0x80",
        },
        35,
        70,
        {"namespace": "ads", "workload": "embed"},
    ),
    Case(
        "TidegateNearlineDeadLetters",
        {
            'tidegate_agent_nearline_dead_letters_total{namespace="ads",pod="embed-6d5f-x1",reason="Refused"}': "0x10 3x40"
        },
        {
            'tidegate_agent_nearline_dead_letters_total{namespace="ads",pod="embed-6d5f-x1",reason="Refused"}': "7x50"
        },
        15,
        45,
        {"namespace": "ads", "workload": "embed"},
    ),
    Case(
        "TidegateEventsBehind",
        {
            _lag_of("live-6d5f-x1"): "3x10 60+60x29 2x20",
            _lag_of("live-6d5f-x2"): "2x60",
            _serving("live-6d5f-x1"): "1x60",
            _serving("live-6d5f-x2"): "1x60",
        },
        {
            _lag_of("live-6d5f-x1"): "290x60",
            _serving("live-6d5f-x1"): "1x60",
            # A new pod that still reads the stream.
            _lag_of("live-6d5f-x2"): "0+60x60",
            _serving("live-6d5f-x2"): "0x60",
        },
        30,
        50,
        LIVE_CLICKS,
    ),
    Case(
        "TidegateEventsRefused",
        {
            _counted_events("stored"): climbing((80, 970)),
            _counted_events("refused", ',reason="WrongType"'): climbing((10, 0), (30, 20), (40, 0)),
            _counted_events("refused", ',reason="TooLate"'): climbing((10, 0), (30, 10), (40, 0)),
        },
        {
            _counted_events("stored"): climbing((80, 992)),
            _counted_events("refused", ',reason="TooLate"'): climbing((80, 8)),
            # Few of few.
            _counted_events("stored", source="likes"): climbing((80, 1)),
            _counted_events("refused", ',reason="TooLate"', source="likes"): climbing(
                (20, 0), (8, 1), (52, 0)
            ),
        },
        38,
        70,
        LIVE_CLICKS,
    ),
    Case(
        "TidegateDeadLettersFailing",
        {_counted_events("dead_letters_failed"): climbing((20, 0), (10, 3), (50, 0))},
        {
            _counted_events("dead_letters"): climbing((80, 5)),
            _counted_events("dead_letters_failed"): climbing((80, 0)),
        },
        30,
        60,
        LIVE_CLICKS,
    ),
    Case(
        "TidegateFeatureStoreFailing",
        {
            _read_keys("redis"): climbing((80, 900)),
            _read_keys("cache"): climbing((80, 80)),
            _read_keys("last-known"): climbing((10, 0), (30, 15), (40, 0)),
            _read_keys("default", pod="live-6d5f-x2"): climbing((10, 0), (30, 5), (40, 0)),
        },
        {
            _read_keys("redis"): climbing((80, 910)),
            _read_keys("cache"): climbing((80, 81)),
            _read_keys("last-known"): climbing((80, 9)),
            # A pause of the Redis of three minutes.
            _read_keys("redis", pod="likes-6d5f-x1"): climbing((30, 990), (3, 0), (47, 990)),
            _read_keys("default", pod="likes-6d5f-x1"): climbing((30, 0), (1, 990), (49, 0)),
            # Few of few.
            _read_keys("redis", pod="views-6d5f-x1"): climbing((80, 3)),
            _read_keys("default", pod="views-6d5f-x1"): climbing((80, 1)),
        },
        38,
        70,
        {"namespace": "ads", "features": "live"},
    ),
    Case(
        "TidegateTableRefused",
        {
            # A table that cannot be reached, and is refused when it is there again, has not been loaded meanwhile.
            _refused_table("TableUnreachable"): "0x4 1x15 0x60",
            _refused_table("TableRefused"): "0x19 1x30 0x29",
            _refused_table("TableRefused", pod="x2"): "0x80",
        },
        {
            # Another table is taken after 28 minutes, and then the source is away for as long.
            _refused_table("TableRefused"): "0x4 1x28 0x50",
            _refused_table("TableUnreachable"): "0x40 1x28 0x15",
            # Two tables in turn.
            _refused_table("TableRefused", source="items"): "0x33 1x20 0x29",
        },
        38,
        70,
        {"namespace": "ads", "features": "live", "source": "profiles"},
    ),
    Case(
        "TidegateNoLeader",
        {'tidegate_leader{instance="c0"}': "1x10 0x20 1x20", 'tidegate_leader{instance="c1"}': "0x50"},
        # A failover.
        {'tidegate_leader{instance="c0"}': "1x10 0x40", 'tidegate_leader{instance="c1"}': "0x11 1x40"},
        20,
        40,
    ),
    Case(
        "TidegateQueueStuck",
        {
            'tidegate_leader{instance="c0"}': "1x60",
            'tidegate_queue_oldest_seconds{instance="c0",queue="inference"}': "0+60x25 0x34",
        },
        {
            'tidegate_leader{instance="c0"}': "1x60",
            'tidegate_leader{instance="c1"}': "0x60",
            'tidegate_queue_oldest_seconds{instance="c0",queue="inference"}': "290x60",
            # Those of a follower only grow.
            'tidegate_queue_oldest_seconds{instance="c1",queue="inference"}': "0+60x60",
        },
        20,
        40,
        QUEUE,
    ),
    Case(
        "TidegateReconcilesCrash",
        {'tidegate_reconciles_total{queue="inference",result="crashed"}': "0x10 1x40"},
        {
            'tidegate_reconciles_total{queue="inference",result="crashed"}': "4x50",
            'tidegate_reconciles_total{queue="inference",result="retried"}': climbing((50, 9)),
        },
        15,
        45,
        QUEUE,
    ),
    Case(
        "TidegateReconcilesFail",
        {
            'tidegate_reconciles_total{queue="inference",result="retried"}': climbing((60, 6), (60, 0)),
            'tidegate_reconciles_total{queue="inference",result="done"}': climbing((120, 4)),
        },
        {
            'tidegate_reconciles_total{queue="inference",result="retried"}': climbing((120, 4)),
            # Bad specs are their authors' affair.
            'tidegate_reconciles_total{queue="inference",result="permanent"}': climbing((120, 9)),
            'tidegate_reconciles_total{queue="inference",result="done"}': climbing((120, 6)),
        },
        40,
        100,
        QUEUE,
    ),
    Case(
        "TidegateObjectsLeftOut",
        {'tidegate_cache_objects_left_out{pod="c0",kind="Pod"}': "0x10 1x20 0x30"},
        {
            'tidegate_cache_objects_left_out{pod="c0",kind="Pod"}': "0x10 2x3 0x47",
            'tidegate_cache_objects_left_out{pod="c0",kind="Node"}': "0x60",
        },
        20,
        40,
        {"kind": "Pod"},
        "read",
    ),
    Case(
        "TidegateObjectsLeftOut",
        {
            'tidegate_xds_objects_failed{pod="x0"}': "0x60",
            'tidegate_xds_objects_failed{pod="x1"}': "0x10 1x20 0x30",
        },
        {'tidegate_xds_objects_failed{pod="x0"}': "0x10 2x3 0x47"},
        20,
        40,
        what="routed",
    ),
    Case(
        "TidegateApiWritesFail",
        {
            'tidegate_api_writes_total{resource="pods",verb="apply",result="unavailable"}': climbing(
                (40, 2), (40, 0)
            ),
            'tidegate_api_writes_total{resource="pods",verb="apply",result="ok"}': climbing((80, 8)),
        },
        {
            'tidegate_api_writes_total{resource="pods",verb="apply",result="unavailable"}': climbing((80, 1)),
            # Conflicts are everyday.
            'tidegate_api_writes_total{resource="pods",verb="apply",result="conflict"}': climbing((80, 20)),
            'tidegate_api_writes_total{resource="pods",verb="apply",result="ok"}': climbing((80, 40)),
        },
        30,
        70,
        {"resource": "pods"},
    ),
    Case(
        "TidegateWebDown",
        {'tidegate_build_info{process="web",version="1"}': "1x10 _x40 1x30"},
        # It is not installed; and one that is restarted.
        {'tidegate_build_info{process="xds",version="1"}': "1x80"},
        40,
        70,
    ),
    Case(
        "TidegateWebErrors",
        {
            'tidegate_web_requests_total{method="GET",status="503"}': climbing((40, 2), (40, 0)),
            'tidegate_web_requests_total{method="GET",status="200"}': climbing((80, 8)),
        },
        {
            'tidegate_web_requests_total{method="GET",status="503"}': climbing((80, 2)),
            'tidegate_web_requests_total{method="GET",status="200"}': climbing((80, 60)),
            'tidegate_web_requests_total{method="GET",status="401"}': climbing((80, 60)),
        },
        30,
        70,
    ),
    Case(
        "TidegateXdsDown",
        {'tidegate_xds_connected_proxies{instance="x0"}': "2x10 _x30 2x30"},
        {'tidegate_xds_connected_proxies{instance="x0"}': "0x70"},
        30,
        60,
    ),
    Case(
        "TidegateGatewayWithoutXds",
        {'envoy_control_plane_connected_state{namespace="t",pod="gateway-0",instance="g0"}': "0x30 1x30"},
        {'envoy_control_plane_connected_state{namespace="t",pod="gateway-0",instance="g0"}': "0x5 1x55"},
        20,
        50,
        {"namespace": "t", "pod": "gateway-0", "instance": "g0"},
    ),
    Case(
        "TidegateConfigurationRejected",
        {'tidegate_xds_nacks_total{type="cluster"}': "0x10 1x40"},
        {'tidegate_xds_nacks_total{type="cluster"}': "2x50"},
        15,
        45,
        {"type": "cluster"},
    ),
    Case(
        "TidegateConfigurationSlow",
        {
            'tidegate_xds_push_seconds_bucket{le="5"}': climbing((40, 5), (40, 10)),
            'tidegate_xds_push_seconds_bucket{le="10"}': climbing((80, 10)),
            'tidegate_xds_push_seconds_bucket{le="+Inf"}': climbing((80, 10)),
        },
        {
            'tidegate_xds_push_seconds_bucket{le="2.5"}': climbing((80, 5)),
            'tidegate_xds_push_seconds_bucket{le="5"}': climbing((80, 10)),
            'tidegate_xds_push_seconds_bucket{le="+Inf"}': climbing((80, 10)),
        },
        30,
        70,
    ),
    Case(
        "TidegateProxyRefused",
        {"tidegate_xds_refused_proxies_total": "0x10 1x40"},
        {"tidegate_xds_refused_proxies_total": "3x50"},
        15,
        45,
    ),
    Case(
        "TidegateGatewaySecretUnusable",
        {'tidegate_xds_gateway_secret_usable{secret="tls",role="server"}': "0x30 1x30"},
        {'tidegate_xds_gateway_secret_usable{secret="tls",role="server"}': "0x5 1x55"},
        20,
        50,
        {"secret": "tls", "role": "server"},
    ),
    Case(
        "TidegateCertificateExpires",
        # promtool's time begins at 0: it ends on the seventh day, and then on the ninth.
        {
            'tidegate_xds_gateway_secret_expires_timestamp_seconds{secret="tls",role="server"}': "604000x90 777600x60"
        },
        {
            'tidegate_xds_gateway_secret_expires_timestamp_seconds{secret="tls",role="server"}': "777600x150",
            # Nothing there yet is another alert's.
            'tidegate_xds_gateway_secret_expires_timestamp_seconds{secret="none",role="server"}': "0x150",
        },
        80,
        140,
        {"secret": "tls", "role": "server"},
        "gateways",
    ),
    Case(
        "TidegateCertificateExpires",
        {'tidegate_xds_server_certificate_expires_timestamp_seconds{instance="x0"}': "604000x90 777600x60"},
        {'tidegate_xds_server_certificate_expires_timestamp_seconds{instance="x0"}': "0x150"},
        80,
        140,
        what="xds",
    ),
    Case(
        "TidegateIssuerKeysFailing",
        {"tidegate_xds_issuer_addresses_failing": "1x30 0x30"},
        {"tidegate_xds_issuer_addresses_failing": "1x10 0x50"},
        25,
        50,
    ),
    Case(
        "TidegateDecisionsStale",
        {
            'tidegate_allocator_decided_timestamp_seconds{pool="gpu-a"}': "0+60x10 600x20 1860+60x30",
            'tidegate_allocator_interval_seconds{pool="gpu-a"}': "30x62",
        },
        {
            'tidegate_allocator_decided_timestamp_seconds{pool="gpu-a"}': "0x5 360x5 720x5 1080x5",
            'tidegate_allocator_interval_seconds{pool="gpu-a"}': "300x24",
        },
        25,
        55,
        GPU_A,
    ),
    Case(
        "TidegateDecisionsStale",
        # Since it began at the tenth minute, the process has not decided; another had.
        {
            'tidegate_allocator_decided_timestamp_seconds{pool="gpu-a",instance="c0"}': "0+60x9 _x90",
            'tidegate_allocator_due_timestamp_seconds{pool="gpu-a",instance="c0"}': "0x9 _x90",
            'tidegate_allocator_interval_seconds{pool="gpu-a",instance="c0"}': "30x9 _x90",
            'tidegate_allocator_decided_timestamp_seconds{pool="gpu-a",instance="c1"}': "_x40 2400+60x59",
            'tidegate_allocator_due_timestamp_seconds{pool="gpu-a",instance="c1"}': "_x10 600x89",
            'tidegate_allocator_interval_seconds{pool="gpu-a",instance="c1"}': "_x10 30x89",
        },
        {
            'tidegate_allocator_decided_timestamp_seconds{pool="gpu-a",instance="c1"}': "_x14 840+60x85",
            'tidegate_allocator_due_timestamp_seconds{pool="gpu-a",instance="c1"}': "_x10 600x89",
            'tidegate_allocator_interval_seconds{pool="gpu-a",instance="c1"}': "_x10 30x89",
        },
        25,
        70,
        GPU_A,
        "since-the-restart",
    ),
    Case(
        "TidegateCompileFailed",
        {
            'tidegate_object_compiled{kind="Inference",namespace="ads",name="ctr",reason="CompileFailed"}': "0x30 _x30"
        },
        {'tidegate_object_compiled{kind="Inference",namespace="ads",name="ctr",reason="Compiling"}': "0x60"},
        20,
        50,
        {"namespace": "ads", "name": "ctr"},
    ),
    Case(
        "TidegateSignalsStale",
        {'tidegate_object_signals_fresh{kind="ComputePool",name="gpu-a",reason="Silent"}': "0x30 1x30"},
        {'tidegate_object_signals_fresh{kind="ComputePool",name="gpu-a",reason="Silent"}': "0x5 1x55"},
        20,
        50,
        {"name": "gpu-a"},
    ),
    Case(
        "TidegateSolverFallsBack",
        {
            'tidegate_allocator_solves_total{pool="gpu-a",solver="Greedy"}': climbing((60, 2), (60, 0)),
            'tidegate_allocator_solves_total{pool="gpu-a",solver="MILP"}': climbing((60, 0), (60, 2)),
        },
        {
            'tidegate_allocator_solves_total{pool="gpu-a",solver="Greedy"}': climbing((120, 1)),
            'tidegate_allocator_solves_total{pool="gpu-a",solver="MILP"}': climbing((120, 2)),
        },
        40,
        100,
        GPU_A,
    ),
    Case(
        "TidegateReclaimSlow",
        {
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="120"}': climbing((60, 1), (60, 2)),
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="300"}': climbing((120, 2)),
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="+Inf"}': climbing((120, 2)),
        },
        {
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="120"}': climbing((120, 19)),
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="300"}': climbing((120, 20)),
            'tidegate_allocator_reclaim_seconds_bucket{tier="offline",le="+Inf"}': climbing((120, 20)),
        },
        45,
        115,
        {"tier": "offline"},
    ),
    Case(
        "TidegateOverrideForgotten",
        {
            'tidegate_override_created_timestamp_seconds{override="pin",kind="Inference",namespace="ads",name="ctr"}': "-172800x40",
            'tidegate_override_expires_timestamp_seconds{override="pin",kind="Inference",namespace="ads",name="ctr"}': "86400x40",
        },
        {
            'tidegate_override_created_timestamp_seconds{override="new",kind="Inference",namespace="ads",name="ctr"}': "-86400x60",
            'tidegate_override_expires_timestamp_seconds{override="new",kind="Inference",namespace="ads",name="ctr"}': "86400x60",
            # It has ended, and is about to be removed.
            'tidegate_override_created_timestamp_seconds{override="old",kind="Inference",namespace="ads",name="ctr"}': "-172800x60",
            'tidegate_override_expires_timestamp_seconds{override="old",kind="Inference",namespace="ads",name="ctr"}': "0x60",
        },
        20,
        55,
        {"override": "pin", "kind": "Inference", "namespace": "ads", "name": "ctr"},
    ),
    Case(
        "TidegateNodesQuarantined",
        {'tidegate_pool_faulty_nodes{pool="gpu-a",state="Quarantined"}': "2x20 0x20"},
        {
            'tidegate_pool_faulty_nodes{pool="gpu-a",state="Quarantined"}': "0x40",
            'tidegate_pool_faulty_nodes{pool="gpu-a",state="Restarting"}': "2x40",
        },
        15,
        35,
        GPU_A,
    ),
    Case(
        "TidegateMpsDaemonSilent",
        {'tidegate_node_mps_daemon_answers{namespace="t",pod="node-agent-1",instance="n1"}': "0x30 1x30"},
        {'tidegate_node_mps_daemon_answers{namespace="t",pod="node-agent-1",instance="n1"}': "0x5 1x55"},
        20,
        50,
        {"namespace": "t", "pod": "node-agent-1", "instance": "n1"},
    ),
)


def _renamed(case: Case) -> Case:
    """As Prometheus keeps it where it was not told to honor labels: the target's namespace, and the object's beside it."""

    def named(series: Mapping[str, str]) -> dict[str, str]:
        return {
            name.replace('namespace="ads"', 'namespace="tidegate-system",exported_namespace="ads"')
            if name.startswith(_OF_OBJECTS)
            else name: values
            for name, values in series.items()
        }

    what = f"{case.what}-renamed" if case.what else "renamed"
    return replace(case, series=named(case.series), quiet=named(case.quiet), what=what)


_OF_OBJECTS = ("tidegate_object_", "tidegate_inference_", "tidegate_override_")
CASES = (
    *_CASES,
    *(
        _renamed(case)
        for case in _CASES
        if any(name.startswith(_OF_OBJECTS) and 'namespace="ads"' in name for name in case.series)
        and case.window in ("", "1h")
    ),
)
