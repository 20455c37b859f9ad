"""Objects that must be refused, each by one rule: by the API server, and by us if an older CRD let it pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builders.backfill import backfill_spec
from builders.batch import batch_spec
from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.live_features import stream_source
from builders.model_access import a_route, model_access_body
from builders.nearline import nearline_spec


@dataclass(frozen=True, slots=True)
class Refusal:
    """A body, the field that is wrong, and what the API server says about it."""

    name: str
    body: Mapping[str, Any]
    path: str
    says: str


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """Two bodies of one object: each is taken, the change from one to the other is not."""

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    path: str
    says: str


_SCHEMES = "must begin with file://, pvc://, https://, s3://, gs://, oci:// or hf://"


def _uri(name: str, uri: str, says: str) -> Refusal:
    return Refusal(f"uri-{name}", inference_body(model={"uri": uri}), "spec.model.uri", says)


def _inference(name: str, path: str, says: str, **spec: Any) -> Refusal:
    return Refusal(name, inference_body(**spec), f"spec.{path}", says)


def _together(replicas: int, rate: str = "9") -> dict[str, Any]:
    return {"replicas": replicas, "requestsPerSecond": rate}


def _logging(sample: str = "0.1", *, files: dict[str, str] | None = None, **nats: str) -> dict[str, Any]:
    sink: dict[str, Any] = {"nats": {"url": "nats://nats.ads:4222", "subject": "samples.ctr", **nats}}
    return {"sample": sample, "sink": sink | ({"files": files} if files else {})}


def _nearline(name: str, path: str, says: str, **changes: Any) -> Refusal:
    return _inference(name, f"nearline.{path}", says, tier="nearline", nearline=nearline_spec(**changes))


def _batch(name: str, path: str, says: str, **changes: Any) -> Refusal:
    return _inference(f"batch-{name}", f"batch.{path}", says, tier="offline", batch=batch_spec(**changes))


def _route(name: str, path: str, says: str, **fields: Any) -> Refusal:
    body = model_access_body(routes=[a_route("default", **fields)])
    return Refusal(name, body, f"spec.routes[0].{path}", says)


def _routes(name: str, path: str, says: str, *routes: Mapping[str, Any]) -> Refusal:
    return Refusal(name, model_access_body(routes=list(routes)), path, says)


def _ranked(by: str, **limit: int) -> Mapping[str, Any]:
    """A model of a pipeline that gets the 100 best rows of another one."""
    return {
        "inference": "ctr",
        "as": "rank",
        "default": "0",
        "candidates": {"by": by, "max": 100, **limit},
    }


def _pipeline(name: str, path: str, says: str, *models: Mapping[str, Any], **fields: Any) -> Refusal:
    pipeline = {"models": list(models or ({"inference": "ctr", "as": "pctr"},)), **fields.pop("pipeline", {})}
    route = {"name": "default", "pipeline": pipeline, **fields}
    return Refusal(f"pipeline-{name}", model_access_body(routes=[route]), f"spec.routes[0].{path}", says)


def _host(name: str, host: str, says: str) -> Refusal:
    return Refusal(f"host-{name}", model_access_body(hosts=[host]), "spec.hosts[0]", says)


def _header(name: str, header: str, says: str, exact: str = "vip", path: str = "name") -> Refusal:
    match = {"headers": [{"name": header, "exact": exact}]}
    return _route(f"header-{name}", f"match.headers[0].{path}", says, match=match)


def _compare(name: str, path: str, says: str, **comparison: str) -> Refusal:
    match = {"headers": [{"name": "x-a", **comparison}]}
    return _route(f"compare-{name}", f"match.headers[0]{path}", says, match=match)


def _release(name: str, path: str, says: str, **fields: Any) -> Refusal:
    """A release of v4 beside v3, with `fields` laid over it."""
    targets = [{"inference": "v3", "weight": 100}, {"inference": "v4", "weight": 0}]
    release = {
        "route": "default",
        "target": "v4",
        "checks": [{"metric": "ErrorRate", "max": "0.001"}],
        **fields,
    }
    body = model_access_body(routes=[a_route("default", targets=targets)], release=release)
    return Refusal(f"release-{name}", body, f"spec.release{path}", says)


def _check(name: str, path: str, says: str, **check: Any) -> Refusal:
    return _release(f"check-{name}", f".checks[0]{path}", says, checks=[check])


def _protection(name: str, path: str, says: str, **fields: Any) -> Refusal:
    return Refusal(f"protection-{name}", model_access_body(protection=fields), f"spec.protection{path}", says)


def _jwt_at(address: str) -> Mapping[str, object]:
    return {"issuer": "https://login.example.com", "audiences": ["ads"], "jwksUri": address}


_JWT = {"issuer": "https://login.example.com", "audiences": ["ads"], "secret": "issuer"}


def _auth(name: str, path: str, says: str, **fields: Any) -> Refusal:
    return Refusal(f"auth-{name}", model_access_body(auth=fields), f"spec.auth{path}", says)


def _pool(name: str, path: str, says: str, **spec: Any) -> Refusal:
    return Refusal(f"pool-{name}", compute_pool_body(**spec), f"spec{path}", says)


def _override(name: str, path: str, says: str, **spec: Any) -> Refusal:
    return Refusal(f"override-{name}", compute_override_body(**spec), f"spec{path}", says)


def _scaled(name: str, path: str, says: str, least: int = 1, most: int = 4, **spec: Any) -> Refusal:
    scaling = {"minReplicas": least, "maxReplicas": most}
    return _inference(
        f"scaling-{name}",
        path,
        says,
        **{"replicas": None, "placement": {"pool": "a"}, "scaling": scaling, **spec},
    )


_MPS = {"slicesPerGPU": 4, "cpu": "1", "memory": "1Gi"}


def _mps(name: str, path: str, says: str, **fields: Any) -> Refusal:
    return _pool(name, f".slice.mps{path}", says, slice={"cpu": None, "mps": {**_MPS, **fields}})


def _shadow(inference: str = "shadow", percent: int = 10) -> dict[str, Any]:
    return {"inference": inference, "percent": percent}


def _feature(name: str, path: str, says: str, **operations: Any) -> Refusal:
    body = feature_compute_body(features=[{"name": "f", **operations}])
    return Refusal(name, body, f"spec.features[0]{path}", says)


def _features(name: str, path: str, says: str, **spec: Any) -> Refusal:
    return Refusal(name, feature_compute_body(**spec), f"spec.{path}", says)


def _backfill(name: str, path: str, says: str, **changes: Any) -> Refusal:
    return _features(f"backfill-{name}", f"backfill.{path}", says, backfill=backfill_spec(**changes))


def _store(name: str, path: str, says: str, **redis: Any) -> Refusal:
    body = feature_compute_body(**_STREAMS, store={"redis": {**_REDIS, **redis}})
    return Refusal(f"store-{name}", body, f"spec.store.redis{path}", says)


def _table(name: str, path: str, says: str, **table: Any) -> Refusal:
    body = feature_compute_body(sources=[{**_PROFILES, "table": {**_TABLE, **table}}])
    return Refusal(f"table-{name}", body, f"spec.sources[0].table{path}", says)


def _stream(name: str, path: str, says: str, **stream: Any) -> Refusal:
    body = feature_compute_body(sources=[_PROFILES, stream_source(**stream)])
    return Refusal(f"stream-{name}", body, f"spec.sources[1].stream{path}", says)


def _window(name: str, path: str, says: str, **window: Any) -> Refusal:
    body = {"field": "clicks.click", "aggregate": "Mean", "over": "1h", **window}
    return _feature(f"window-{name}", f".window{path}", says, window=body)


def _ratio(name: str, path: str, says: str, **ratio: Any) -> Refusal:
    part = {"field": "clicks.click", "aggregate": "Count", "over": "1h"}
    return _feature(
        f"ratio-{name}", f".ratio{path}", says, ratio={"numerator": part, "denominator": part, **ratio}
    )


def _targets(*weights: int) -> list[dict[str, Any]]:
    return [{"inference": f"ctr-v{number}", "weight": weight} for number, weight in enumerate(weights)]


_MATCH = {"headers": [{"name": "x-scene", "exact": "home"}]}
_UNSUPPORTED = "Unsupported value"
_PLACE = "must name a place"
_PLAIN = "must be plain ASCII"
_DOTS = "must have no '..' segment"
_DNS_LABEL = "must be a DNS label"

INFERENCE_REFUSALS: Sequence[Refusal] = (
    _scaled("and-replicas", "replicas", "replicas is only for Inferences without scaling", replicas=2),
    _scaled("without-pool", "scaling", "scaling is only for Inferences with placement", placement=None),
    _scaled("turned-round", "scaling.minReplicas", "minReplicas must not be above maxReplicas", least=5),
    _scaled(
        "node-loss-offline",
        "scaling",
        "scaling.nodeLoss is only for tier realtime",
        tier="offline",
        scaling={"minReplicas": 0, "maxReplicas": 4, "nodeLoss": "Strict"},
    ),
    _scaled(
        "node-loss",
        "scaling.nodeLoss",
        _UNSUPPORTED,
        scaling={"minReplicas": 1, "maxReplicas": 4, "nodeLoss": "N-1"},
    ),
    _scaled("realtime-at-zero", "scaling", "scaling.minReplicas: 0 is only for tier nearline", least=0),
    _inference("value-zero", "value.perRequest", "must be more than 0", value={"perRequest": "0.00"}),
    _inference("value-word", "value.perRequest", "must be a decimal number", value={"perRequest": "high"}),
    _inference(
        "placement-and-resources",
        "resources",
        "resources is only for Inferences without placement",
        placement={"pool": "cpu-a"},
        resources={"cpu": "1"},
    ),
    _inference(
        "placement-no-slices",
        "placement.slices",
        "greater than or equal to 1",
        placement={"pool": "cpu-a", "slices": 0},
    ),
    _inference(
        "placement-pool-and-pools",
        "placement",
        "set exactly one of pool and pools",
        placement={"pool": "cpu-a", "pools": [{"name": "cpu-b"}]},
    ),
    _inference(
        "placement-nowhere", "placement", "set exactly one of pool and pools", placement={"slices": 2}
    ),
    _inference(
        "placement-pool-twice",
        "placement.pools",
        "Duplicate value",
        placement={"pools": [{"name": "cpu-a"}, {"name": "cpu-a", "slices": 2}]},
    ),
    *(
        _inference(
            f"placement-relative-capacity-{relative}",
            "placement.pools[0].relativeCapacity",
            says,
            placement={"pools": [{"name": "cpu-a", "relativeCapacity": relative}]},
        )
        for relative, says in (
            ("0.0", "must be more than 0"),
            ("NaN", "must be a decimal"),
            ("1e9", "must be a decimal"),
        )
    ),
    _inference(
        "placement-pools-without-slices",
        "placement.pools[0].slices",
        "greater than or equal to 1",
        placement={"pools": [{"name": "cpu-a", "slices": 0}]},
    ),
    _inference(
        "batch-in-several-pools",
        "placement",
        "placement.pools is not for a batch",
        tier="offline",
        placement={"pools": [{"name": "cpu-a"}]},
        batch=batch_spec(),
    ),
    _inference("placement-pool", "placement.pool", "must be a DNS label", placement={"pool": "A"}),
    _inference("batch-tier", "batch", "batch is only for tier offline", batch=batch_spec()),
    _inference(
        "batch-queue-placed",
        "batch",
        "batch.queueName is only for Inferences without placement",
        tier="offline",
        placement={"pool": "cpu-a"},
        batch=batch_spec(queueName="offline"),
    ),
    _inference(
        "batch-and-logging",
        "logging",
        "logging is for requests",
        tier="offline",
        batch=batch_spec(),
        logging=_logging(),
    ),
    _batch(
        "within",
        "output",
        "output.uri must not be within input.uri",
        output={"uri": "s3://lake/users/scores"},
    ),
    _batch("same", "output", "output.uri must not be within input.uri", output={"uri": "s3://lake/users"}),
    _backfill(
        "within",
        "output",
        "output.uri must not be within input.uri",
        output={"uri": "s3://lake/labels/features"},
    ),
    _backfill(
        "file", "output.uri", "must be pvc://<claim>/<path>, s3://", output={"uri": "file:///models/out"}
    ),
    _backfill("shards", "shards", "greater than or equal to 1", shards=0),
    _backfill("parallelism", "parallelism", "less than or equal to 1000", parallelism=1_001),
    _backfill("deadline", "deadline", "must be from 1m to 720h", deadline="30s"),
    _batch("https", "input.uri", "a folder cannot be listed over https", input={"uri": "https://lake/users"}),
    _batch("file", "output.uri", "must be pvc://<claim>/<path>, s3://", output={"uri": "file:///models/out"}),
    _batch(
        "column",
        "input.columns[0].column",
        "must have no control characters",
        input={"uri": "s3://lake/users", "columns": [{"input": "x", "column": "a\nb"}]},
    ),
    _batch("nobody", "output.keep", "at least 1 items", output={"keep": []}),
    _batch("no-shard", "shards", "greater than or equal to 1", shards=0),
    _batch("too-many-shards", "shards", "less than or equal to 1000", shards=1001),
    _batch("deadline", "deadline", "must be from 1m to 720h", deadline="59s"),
    _batch(
        "columns-twice",
        "input.columns",
        "Duplicate value",
        input={"columns": [{"input": "x", "column": "a"}, {"input": "x", "column": "b"}]},
    ),
    _batch(
        "features-source",
        "features.sources[0].uri",
        "a folder cannot be listed over https",
        features={"name": "live", "sources": [{"name": "clicks", "uri": "https://lake/clicks"}]},
    ),
    _batch("features-name", "features.name", "must be a DNS label", features={"name": "user_features"}),
    _inference(
        "realtime-at-zero", "replicas", "replicas: 0 is only for tier nearline and offline", replicas=0
    ),
    _inference("rollout-mode", "rollout.mode", _UNSUPPORTED, rollout={"mode": "Recreate"}),
    _inference(
        "progress-deadline-too-short",
        "rollout.progressDeadline",
        "must be from 10s to 24h",
        rollout={"progressDeadline": "9s"},
    ),
    Refusal("name-with-dots", inference_body("ctr.v3"), "metadata", "metadata.name must be a DNS label"),
    Refusal("name-of-64", inference_body("c" * 64), "metadata", "metadata.name must be a DNS label"),
    _inference(
        "warm-up-of-code",
        "rollout",
        "rollout.warmup.requests is only for format ONNX",
        model={"format": "Python"},
        rollout={"warmup": {"requests": 1}},
    ),
    _inference(
        "served-name-with-slash", "model.name", "must be letters, digits, dashes", model={"name": "a/b"}
    ),
    _inference(
        "served-name-with-dots", "model.name", "must be letters, digits, dashes", model={"name": "a..b"}
    ),
    _inference("served-name-too-long", "model.name", "may not be more than 128", model={"name": "a" * 129}),
    _uri("unknown-scheme", "ftp://models/ctr", _SCHEMES),
    _uri("http", "http://models/ctr", _SCHEMES),
    _uri("no-scheme", "models/ctr", _SCHEMES),
    _uri("traversal", "file:///models/../etc", _DOTS),
    _uri("traversal-at-the-end", "s3://models/ctr/..", _DOTS),
    _uri("hidden-traversal", "https://models.example.com/%2e%2e/etc", _DOTS),
    _uri("hidden-slash", "https://models.example.com/a%2Fb", _DOTS),
    _uri("credentials", "https://user:secret@models.example.com/ctr", _PLAIN),
    _uri("query", "https://models.example.com/ctr?token=secret", _PLAIN),
    _uri("fragment", "https://models.example.com/ctr#v1", _PLAIN),
    _uri("blank", "file:///models/my model", _PLAIN),
    _uri("line-break", "file:///models/ctr\n", _PLAIN),
    _uri("unicode", "file:///модели/ctr", _PLAIN),
    _uri("file-without-path", "file://models/ctr", _PLACE),
    _uri("pvc-without-claim", "pvc:///ctr", _PLACE),
    _uri("https-without-host", "https:///ctr", _PLACE),
    _uri("s3-without-bucket", "s3:///ctr", _PLACE),
    _uri("gs-without-bucket", "gs:///ctr", _PLACE),
    _uri("oci-without-repository", "oci://registry.example.com", _PLACE),
    _uri("oci-tag", "oci://registry.example.com/ads/ctr:3", "must name no tag"),
    _uri("oci-digest", "oci://registry.example.com/ads/ctr@sha256:00", _PLAIN),
    _uri("hf-without-repository", "hf://organisation", _PLACE),
    _inference(
        "revision-elsewhere",
        "model.revision",
        "revision is only for oci:// and hf://",
        model={"revision": "main"},
    ),
    _inference(
        "revision-with-a-slash",
        "model.revision",
        "must be letters, digits, dashes, underscores and dots, not beginning",
        model={"uri": "hf://ads/ctr", "revision": "refs/pr/1"},
    ),
    _inference(
        "logging-python",
        "logging",
        "logging is only for format ONNX",
        model={"format": "Python"},
        logging=_logging(),
    ),
    _inference(
        "compile-python", "compile", "compile is only for format ONNX", model={"format": "Python"}, compile={}
    ),
    _inference(
        "compile-batch",
        "compile",
        "compile is not for a batch",
        tier="offline",
        batch=batch_spec(),
        compile={},
    ),
    *(
        _inference(f"shared-inputs-{name}", "model", "model.sharedInputs is only for format ONNX", **spec)
        for name, spec in {
            "python": {"model": {"format": "Python", "sharedInputs": ["user"]}},
            "adaptive": {"model": {"sharedInputs": ["user"]}, "batching": {"mode": "Adaptive"}},
            "nearline": {
                "model": {"sharedInputs": ["user"]},
                "tier": "nearline",
                "nearline": nearline_spec(),
            },
        }.items()
    ),
    _inference(
        "shared-inputs-twice",
        "model.sharedInputs",
        "Duplicate value",
        model={"sharedInputs": ["user", "user"]},
    ),
    _inference(
        "instances-python",
        "instances",
        "instances is only for format ONNX",
        model={"format": "Python"},
        instances=2,
    ),
    _inference("instances-none", "instances", "greater than or equal to 1", instances=0),
    _inference("instances-many", "instances", "less than or equal to 64", instances=65),
    _inference("compile-passes", "compile.passes", _UNSUPPORTED, compile={"passes": "Some"}),
    _inference("compile-engine", "compile.engine", _UNSUPPORTED, compile={"engine": "TensorRT"}),
    _inference(
        "compile-precision",
        "compile.precision",
        _UNSUPPORTED,
        compile={"engine": "OpenVINO", "precision": "INT8"},
    ),
    _inference(
        "compile-engine-alone",
        "compile.engine",
        "engine OpenVINO or Auto compiles the graph that passes leave",
        compile={"passes": "Disabled", "engine": "Auto"},
    ),
    *(
        _inference(
            f"compile-{name}-alone",
            "compile.engine",
            "precision BF16 and buckets are only for engine OpenVINO or Auto",
            compile=spec,
        )
        for name, spec in {"precision": {"precision": "BF16"}, "buckets": {"buckets": {"rows": [1]}}}.items()
    ),
    *(
        _inference(f"compile-cache-{name}", "compile.cache", text, compile={"cache": uri})
        for name, uri, text in (
            ("https", "https://store.example.com/compiled", "must be s3://"),
            ("claim", "pvc://compiled/graphs", "must be s3://"),
            ("outside", "s3://models/../other", "must not leave the folder that it names"),
        )
    ),
    *(
        _inference(
            f"compile-buckets-{name}",
            f"compile.buckets.{field}",
            text,
            compile={"engine": "Auto", "buckets": {field.removesuffix("[0]"): sizes}},
        )
        for name, field, sizes, text in (
            ("unsorted", "rows", [16, 8], "rows must increase from one size to the next"),
            ("twice", "lengths", [8, 8], "lengths must increase from one size to the next"),
            ("empty", "rows", [], "should have at least 1 items"),
            ("many", "rows", list(range(1, 10_001)), "must have at most 16 items"),
            ("zero", "lengths[0]", [0], "greater than or equal to 1"),
        )
    ),
    _inference("sample-zero", "logging.sample", "must be more than 0", logging=_logging("0.00")),
    _inference("sample-many", "logging.sample", "should match", logging=_logging("1.01")),
    _inference("sample-word", "logging.sample", "should match", logging=_logging("1%")),
    _inference(
        "sink-none",
        "logging.sink",
        "needs exactly one of nats and files",
        logging={"sample": "1", "sink": {}},
    ),
    _inference(
        "sink-both",
        "logging.sink",
        "needs exactly one of nats and files",
        logging=_logging(files={"uri": "pvc://samples/ctr"}),
    ),
    _inference(
        "nats-url-with-credentials",
        "logging.sink.nats.url",
        "must be nats://<host>:<port>",
        logging=_logging(url="nats://me:secret@nats.ads:4222"),
    ),
    _inference(
        "nats-url-port",
        "logging.sink.nats.url",
        "with a port of 1 to 65535",
        logging=_logging(url="nats://nats.ads:65536"),
    ),
    _inference(
        "nats-url-port-zero",
        "logging.sink.nats.url",
        "with a port of 1 to 65535",
        logging=_logging(url="nats://nats.ads:0"),
    ),
    _inference(
        "nats-subject-wildcard", "logging.sink.nats.subject", "must be words", logging=_logging(subject="a.>")
    ),
    _inference(
        "sample-files-scheme",
        "logging.sink.files.uri",
        "must be pvc://<claim>/<path>",
        logging={"sample": "1", "sink": {"files": {"uri": "https://models.example.com/log"}}},
    ),
    _inference(
        "sample-files-dots",
        "logging.sink.files.uri",
        "must not leave the folder",
        logging={"sample": "1", "sink": {"files": {"uri": "pvc://samples/a/../b"}}},
    ),
    _inference(
        "nearline-realtime", "nearline", "nearline is only for tier nearline", nearline=nearline_spec()
    ),
    _nearline(
        "nearline-dead-letters",
        "deadLetters",
        "deadLetters.subject must be another",
        deadLetters={"subject": "work.rank"},
    ),
    _nearline(
        "nearline-deadline",
        "consume.deadline",
        "needs exactly one of header and field",
        consume={"deadline": {"header": "x", "field": "y"}},
    ),
    _nearline(
        "nearline-stream",
        "consume.nats.stream",
        "must be letters, digits, dashes and underscores",
        nats={"stream": "a.b"},
    ),
    _nearline("nearline-delay", "maxDelay", "must be from 10s to 24h", maxDelay="5s"),
    _nearline("nearline-ttl", "produce.store.nats.ttl", "must be from 1m to 720h", bucket={"ttl": "1s"}),
    _nearline(
        "nearline-two-brokers",
        "consume",
        "give exactly one of nats, kafka",
        consume={"kafka": {"bootstrapServers": ["kafka:9092"], "topic": "work"}},
    ),
    _nearline(
        "nearline-kafka-dead-letters",
        "deadLetters",
        "deadLetters.topic must be another",
        kafka={"topic": "work-dead"},
    ),
    _nearline(
        "nearline-kafka-dead-subject",
        "deadLetters",
        "deadLetters goes to the stream's own broker",
        kafka={},
        deadLetters={"subject": "dead.rank"},
    ),
    _nearline(
        "nearline-kafka-bucket",
        "produce",
        "produce.store.nats.url is the bucket's server",
        kafka={},
        produce={"store": {"nats": {"bucket": "results"}}},
    ),
    _nearline(
        "nearline-bucket-url",
        "produce",
        "produce.store.nats.url is the bucket's server",
        bucket={"url": "nats://nats.ads:4222"},
    ),
    _nearline(
        "nearline-bucket-secret",
        "produce.store.nats.secretName",
        "secretName is only for a bucket with a url of its own",
        bucket={"secretName": "reader"},
    ),
    _nearline(
        "nearline-kafka-server",
        "consume.kafka.bootstrapServers[0]",
        "must be <host>:<port>",
        kafka={"bootstrapServers": ["kafka"]},
    ),
    _nearline("nearline-kafka-topic", "consume.kafka.topic", "must not be . or ..", kafka={"topic": ".."}),
    _nearline(
        "nearline-kafka-clear",
        "consume.kafka.sasl",
        "sasl PLAIN would send the password in the clear",
        kafka={"sasl": "PLAIN", "secretName": "reader"},
    ),
    _nearline(
        "nearline-two-graves",
        "deadLetters",
        "give exactly one of subject, topic",
        deadLetters={"subject": "dead.rank", "topic": "dead"},
    ),
    _nearline(
        "nearline-kafka-mechanism",
        "consume.kafka.sasl",
        _UNSUPPORTED,
        kafka={"sasl": "GSSAPI", "secretName": "reader"},
    ),
    _nearline(
        "nearline-kafka-sasl",
        "consume.kafka.sasl",
        "sasl needs a secretName",
        kafka={"sasl": "SCRAM-SHA-512"},
    ),
    _nearline("nearline-tries", "maxDeliveries", "should be greater than or equal to 1", maxDeliveries=0),
    _nearline(
        "nearline-held",
        "consume.maxInFlight",
        "should be less than or equal to 256",
        consume={"maxInFlight": 257},
    ),
    _inference("secret-name", "model.secretName", "must be a DNS label", model={"secretName": "Models"}),
    _inference("service-account", "serviceAccountName", "must be a DNS label", serviceAccountName="a.b"),
    _uri("too-long", "file:///" + "m" * 1024, "may not be more than 1024"),
    _inference("version-zero", "model.version", "should match", model={"version": "0"}),
    _inference("version-word", "model.version", "should match", model={"version": "latest"}),
    _inference("version-path", "model.version", "should match", model={"version": "../1"}),
    _inference("version-empty", "model.version", "should match", model={"version": ""}),
    _inference("sha256-short", "model.sha256", "should match", model={"sha256": "9f86d0"}),
    _inference("sha256-upper-case", "model.sha256", "should match", model={"sha256": "A" * 64}),
    _inference("format", "model.format", _UNSUPPORTED, model={"format": "SavedModel"}),
    _inference("tier", "tier", _UNSUPPORTED, tier="batch"),
    _inference("replicas-negative", "replicas", "should be greater than or equal to 0", replicas=-1),
    _inference("replicas-many", "replicas", "should be less than or equal to 1000", replicas=1001),
    _inference("cpu-zero", "resources.cpu", "must be from 10m to 1024", resources={"cpu": 0}),
    _inference("cpu-many", "resources.cpu", "must be from 10m to 1024", resources={"cpu": "1e9"}),
    _inference("cpu-negative", "resources.cpu", "should match", resources={"cpu": "-1"}),
    _inference("cpu-word", "resources.cpu", "should match", resources={"cpu": "two"}),
    _inference("memory-small", "resources.memory", "must be from 32Mi to 64Ti", resources={"memory": "1"}),
    _inference("memory-large", "resources.memory", "must be from 32Mi to 64Ti", resources={"memory": "1Ei"}),
    _inference("slo-time", "slo.latencyP99", "must be from 1ms to 1h", slo={"latencyP99": "2h"}),
    _inference(
        "capacity-none",
        "capacity.requestsPerSecond",
        "must be more than 0",
        capacity={"requestsPerSecond": "0.0"},
    ),
    _inference(
        "capacity-negative",
        "capacity.requestsPerSecond",
        "must be a decimal number in quotes",
        capacity={"requestsPerSecond": "-3"},
    ),
    *(
        _inference(
            f"capacity-together-{name}",
            f"capacity.together{path}",
            says,
            capacity={"requestsPerSecond": "9", "together": together},
        )
        for name, path, says, together in (
            ("one", "[0].replicas", "greater than or equal to 2", [_together(1)]),
            ("many", "[0].replicas", "less than or equal to 1000", [_together(1001)]),
            ("zero", "[0].requestsPerSecond", "must be more than 0", [_together(2, "0")]),
            ("twice", "", "Duplicate value", [_together(2), _together(2, "8")]),
            ("long", "", "must have at most 8 items", [_together(count) for count in range(2, 11)]),
        )
    ),
    _inference("batching-mode", "batching.mode", _UNSUPPORTED, batching={"mode": "Dynamic"}),
    _inference(
        "batch-size-zero", "batching.maxBatchSize", "greater than or equal to 1", batching={"maxBatchSize": 0}
    ),
    _inference(
        "batch-size-large",
        "batching.maxBatchSize",
        "less than or equal to 4096",
        batching={"maxBatchSize": 4097},
    ),
    _inference(
        "queue-delay-without-fixed",
        "batching.maxQueueDelay",
        "maxQueueDelay is only for mode Fixed",
        batching={"maxQueueDelay": "2ms"},
    ),
    _inference(
        "queue-delay-long",
        "batching.maxQueueDelay",
        "must be from 1us to 1s",
        batching={"mode": "Fixed", "maxQueueDelay": "2s"},
    ),
    _inference(
        "queue-delay-zero",
        "batching.maxQueueDelay",
        "must be from 1us to 1s",
        batching={"mode": "Fixed", "maxQueueDelay": "0s"},
    ),
    _inference(
        "queue-delay-fraction",
        "batching.maxQueueDelay",
        "should match",
        batching={"mode": "Fixed", "maxQueueDelay": "1.5ms"},
    ),
)

MODEL_ACCESS_REFUSALS: Sequence[Refusal] = (
    Refusal("access-name", model_access_body("ctr.ads"), "metadata", "metadata.name must be a DNS label"),
    _pipeline(
        "and-targets", "targets", "give exactly one of targets, pipeline", targets=[{"inference": "ctr"}]
    ),
    _pipeline(
        "fallback", "pipeline", "sticky, mirror and fallback are for targets", fallback={"inference": "ctr"}
    ),
    _pipeline(
        "patient",
        "pipeline",
        "the timeout of a pipeline's model must be shorter than the route's",
        {"inference": "ctr", "as": "pctr", "timeout": "1s"},
    ),
    _pipeline(
        "inference-name", "pipeline.models[0].inference", _DNS_LABEL, {"inference": "a/b/c", "as": "p"}
    ),
    _pipeline(
        "features-name",
        "pipeline.features",
        "must be a DNS label (lower-case letters, digits and dashes, at most 63), or <namespace>/<name>",
        pipeline={"features": "ads/user/features"},
    ),
    _pipeline(
        "both",
        "pipeline.models[0]",
        "give exactly one of inference, access",
        {"inference": "ctr", "as": "pctr", "access": "ctr"},
    ),
    _pipeline(
        "default-alone",
        "pipeline.models[0].default",
        "default is the output where a model does not answer",
        {"inference": "ctr", "as": "pctr", "default": "1"},
    ),
    _pipeline(
        "no-deadline",
        "pipeline.models[0].timeout",
        "an optional model needs a timeout of its own",
        {"inference": "ctr", "as": "pctr", "optional": True, "default": "1"},
    ),
    _pipeline(
        "reserved",
        "pipeline.models[0].as",
        "must not be features, tidegate_defaulted or tidegate_not_current",
        {"inference": "ctr", "as": "features"},
    ),
    _pipeline(
        "reserved-mark",
        "pipeline.models[0].as",
        "must not be features, tidegate_defaulted or tidegate_not_current",
        {"inference": "ctr", "as": "tidegate_not_current"},
    ),
    _pipeline(
        "candidates-without-default",
        "pipeline.models[1].default",
        "give it with optional or candidates",
        {"inference": "small", "as": "prerank"},
        {"inference": "ctr", "as": "rank", "candidates": {"by": "prerank", "max": 100}},
    ),
    _pipeline(
        "more-candidates-at-least",
        "pipeline.models[1].candidates.min",
        "min must be less than max",
        {"inference": "small", "as": "prerank"},
        _ranked("prerank", min=100),
    ),
    _pipeline(
        "reduced-without-fewer-candidates",
        "pipeline.reducedValuePercent",
        "reducedValuePercent is what an answer with fewer candidates is worth",
        {"inference": "small", "as": "prerank"},
        _ranked("prerank"),
        pipeline={"reducedValuePercent": 90},
        value="1",
    ),
    _pipeline(
        "reduced-alone-without-min",
        "pipeline.models[2].candidates.reducedValuePercent",
        "reducedValuePercent is what an answer with min rows is worth",
        {"inference": "small", "as": "prerank"},
        _ranked("prerank", min=50),
        {**_ranked("rank", reducedValuePercent=95), "as": "final"},
        pipeline={"reducedValuePercent": 90},
        value="1",
    ),
    *(
        _pipeline(
            f"reduced-alone-{name}",
            "pipeline.models",
            "candidates.reducedValuePercent is that of an answer with fewer rows for one model",
            {"inference": "small", "as": "prerank"},
            _ranked("prerank", min=50, reducedValuePercent=89),
            pipeline=together,
            value="1",
        )
        for name, together in (("lower", {"reducedValuePercent": 90}), ("without-together", {}))
    ),
    _pipeline(
        "reduced-without-value",
        "pipeline",
        "pipeline.reducedValuePercent is a percentage of the route's value",
        {"inference": "small", "as": "prerank"},
        _ranked("prerank", min=50),
        pipeline={"reducedValuePercent": 90},
    ),
    Refusal(
        "fallback-value-of-nothing",
        model_access_body(routes=[a_route(fallback={"inference": "small", "valuePercent": 80})]),
        "spec.routes[0].fallback",
        "fallback.valuePercent is a percentage of the route's value",
    ),
    _pipeline(
        "model-name", "pipeline.modelName", "must begin with a letter or digit", pipeline={"modelName": "-x"}
    ),
    _host("upper-case", "CTR.example.com", "must be a lower-case DNS name"),
    _host("port", "ctr.example.com:80", "must be a lower-case DNS name"),
    _host("wildcard", "*.example.com", "must be a lower-case DNS name"),
    _host("reserved", "other.ads.tidegate", "must not end in .tidegate"),
    _host("reserved-alone", "tidegate", "must not end in .tidegate"),
    Refusal("host-twice", model_access_body(hosts=["a.b", "a.b"]), "spec.hosts", "Duplicate value"),
    Refusal(
        "hosts-many", model_access_body(hosts=[f"h{n}.b" for n in range(17)]), "spec.hosts", "at most 16"
    ),
    Refusal("routes-none", model_access_body(routes=[]), "spec.routes", "at least 1 items"),
    Refusal(
        "routes-many",
        model_access_body(routes=[a_route(f"r{n}", match=_MATCH) for n in range(65)]),
        "spec.routes",
        "at most 64",
    ),
    _routes("route-twice", "spec.routes", "Duplicate value", a_route("a", match=_MATCH), a_route("a")),
    _routes(
        "two-routes-without-match",
        "spec.routes",
        "only one route may be without match",
        a_route("a"),
        a_route("b"),
    ),
    _routes(
        "route-without-match-first",
        "spec.routes",
        "the route without match must be the last",
        a_route("a"),
        a_route("b", match=_MATCH),
    ),
    _routes("route-name", "spec.routes[0].name", _DNS_LABEL, a_route("Default")),
    _route("match-empty", "match.headers", "at least 1 items", match={"headers": []}),
    _header("upper-case", "X-User", "must be a lower-case header name"),
    _header("pseudo", ":authority", "must be a lower-case header name"),
    _header("envoy", "x-envoy-retry-on", "must not be host, x-envoy-"),
    _header("ours", "x-tidegate-access", "must not be host, x-envoy-"),
    _header("host", "host", "must not be host, x-envoy-"),
    _header("line-break", "x-user", "should match", exact="vip\r\nx-admin: 1", path="exact"),
    _header("value-too-long", "x-user", "may not be more than 256", exact="v" * 257, path="exact"),
    _route(
        "header-twice",
        "match.headers",
        "Duplicate value",
        match={"headers": [{"name": "x-a", "exact": "1"}, {"name": "x-a", "exact": "2"}]},
    ),
    _compare("nothing", "", "give exactly one of exact, prefix, regex"),
    _compare("two", "", "give exactly one of exact, prefix, regex", exact="a", prefix="a"),
    _compare("prefix-empty", ".prefix", "at least 1 chars", prefix=""),
    _compare("prefix-line-break", ".prefix", "should match", prefix="a\nb"),
    _compare("regex-broken", ".regex", "error parsing regexp", regex="(a"),
    _compare("regex-looks-ahead", ".regex", "error parsing regexp", regex="(?=a)"),
    _compare("regex-long", ".regex", "may not be more than 256", regex="a" * 257),
    _route("sticky-nothing", "sticky", "give exactly one of header, cookie", sticky={}),
    _route(
        "sticky-both",
        "sticky",
        "give exactly one of header, cookie",
        sticky={"header": "x-user", "cookie": "user"},
    ),
    _route(
        "sticky-ours", "sticky.header", "must not be host, x-envoy-", sticky={"header": "x-tidegate-target"}
    ),
    _route("sticky-cookie", "sticky.cookie", "must be letters, digits", sticky={"cookie": "a=b; c"}),
    _route("mirror-none", "mirror[0].percent", "greater than or equal to 1", mirror=[_shadow(percent=0)]),
    _route("mirror-more", "mirror[0].percent", "less than or equal to 100", mirror=[_shadow(percent=101)]),
    _route("mirror-twice", "mirror", "Duplicate value", mirror=[_shadow(), _shadow()]),
    _route("mirrors-many", "mirror", "at most 4", mirror=[_shadow(f"s{number}") for number in range(5)]),
    _route("fallback-is-target", "fallback", "must not be a target", fallback={"inference": "ctr"}),
    _release("target-name", ".target", _DNS_LABEL, target="Other/v4"),
    _release("no-such-route", "", "release.target must be a target of the route", route="gone"),
    _release("no-such-target", "", "release.target must be a target of the route", target="gone"),
    _release(
        "nothing-to-go-back-to", "", "the route needs another target with a weight above 0", target="v3"
    ),
    _release("steps-fall", ".steps", "must ascend", steps=[5, 1]),
    _release("steps-stand", ".steps", "must ascend", steps=[5, 5]),
    _release("step-zero", ".steps[0]", "greater than or equal to 1", steps=[0, 5]),
    _release("on-failure", ".onFailure", "Unsupported value", onFailure="Shrug"),
    _check("metric", ".metric", "Unsupported value", metric="Beauty", max="0.1"),
    _release("interval", ".interval", "must be from 1s to 24h", interval="1ms"),
    _release(
        "check-twice",
        ".checks",
        "each metric and each query may be there once",
        checks=[{"metric": "ErrorRate", "max": "0.1"}] * 2,
    ),
    _check("of-nothing", "", "give exactly one of metric, prometheus", max="0.1"),
    _check(
        "of-both",
        "",
        "give exactly one of metric, prometheus",
        metric="ErrorRate",
        prometheus="up",
        max="0.1",
    ),
    _check("no-max", "", "LatencyP99 takes maxRatioToStable", metric="ErrorRate"),
    _check("latency-max", "", "LatencyP99 takes maxRatioToStable", metric="LatencyP99", max="0.1"),
    _check("whole", ".max", "the max of ErrorRate is a share", metric="ErrorRate", max="1"),
    _check("no-number", ".max", "must be a decimal number", prometheus="up", max="many"),
    _release(
        "nothing-to-compare",
        ".steps",
        "LatencyP99 compares with the other targets",
        steps=[100],
        checks=[{"metric": "LatencyP99", "maxRatioToStable": "1.10"}],
    ),
    _check("faster", ".maxRatioToStable", "must be at least 1", metric="LatencyP99", maxRatioToStable="0.9"),
    _check(
        "query-requests",
        ".minRequests",
        "the gateways count no requests",
        prometheus="up",
        max="1",
        minRequests=1,
    ),
    _protection("rate-zero", ".rateLimit.requests", "greater than or equal to 1", rateLimit={"requests": 0}),
    _protection(
        "rate-period", ".rateLimit.per", "must be from 100ms to 1m", rateLimit={"requests": 1, "per": "1ms"}
    ),
    _protection("concurrent-zero", ".maxConcurrent", "greater than or equal to 1", maxConcurrent=0),
    _protection("pending-many", ".maxPending", "less than or equal to 65536", maxPending=65_537),
    _protection(
        "admission",
        ".admissionControl.maxFailurePercent",
        "less than or equal to 50",
        admissionControl={"maxFailurePercent": 51},
    ),
    _protection(
        "admission-mode", ".admissionControl.mode", "Unsupported value", admissionControl={"mode": "Free"}
    ),
    *(
        _routes(f"route-value-{name}", "spec.routes[0].value", says, a_route(value=value))
        for name, value, says in (
            ("nan", "NaN", "must be a decimal number"),
            ("negative", "-1", "must be a decimal number"),
            ("exponent", "1e308", "must be a decimal number"),
            ("endless", "9" * 13, "must be a decimal number"),
        )
    ),
    _protection("eject-for", ".outlier.ejectFor", "must be from 1s to 1h", outlier={"ejectFor": "0s"}),
    _protection(
        "failures",
        ".outlier.consecutiveFailures",
        "greater than or equal to 1",
        outlier={"consecutiveFailures": 0},
    ),
    _auth("nothing", "", "give exactly one of apiKeys, jwt, mtls"),
    _auth("both", "", "give exactly one of apiKeys, jwt, mtls", apiKeys={"secret": "k"}, jwt=_JWT),
    _auth("secret", ".apiKeys.secret", _DNS_LABEL, apiKeys={"secret": "other/k"}),
    _auth(
        "header",
        ".apiKeys.header",
        "must be authorization or begin with x-",
        apiKeys={"secret": "k", "header": "te"},
    ),
    _auth(
        "header-ours",
        ".apiKeys.header",
        "must not be host, x-envoy-",
        apiKeys={"secret": "k", "header": "x-tidegate-target"},
    ),
    _auth("issuer", ".jwt.issuer", "should match", jwt={**_JWT, "issuer": "a b"}),
    _auth(
        "keys-twice",
        ".jwt",
        "give exactly one of secret, jwksUri",
        jwt={**_JWT, "jwksUri": "https://login.example.com/keys"},
    ),
    _auth(
        "keys-none",
        ".jwt",
        "give exactly one of secret, jwksUri",
        jwt={"issuer": "https://login.example.com", "audiences": ["ads"]},
    ),
    *(
        _auth(f"keys-{name}", ".jwt.jwksUri", "must be https://<host>/<path>", jwt=_jwt_at(address))
        for name, address in {
            "plain": "http://login.example.com/a",
            "no-path": "https://login.example.com",
            "password": "https://me:pw@login.example.com/a",
            "capitals": "https://Login.example.com/",
            "port": "https://login.example.com:0/a",
            "blank": "https://login.example.com/a b",
            "backslash": "https://a.com\\@b.com/",
        }.items()
    ),
    _auth(
        "keys-fragment", ".jwt.jwksUri", "must have no fragment", jwt=_jwt_at("https://login.example.com/#a")
    ),
    _auth("identities-none", ".mtls.identities", "at least 1 items", mtls={"identities": []}),
    _auth("identity-twice", ".mtls.identities", "Duplicate value", mtls={"identities": ["a.com", "a.com"]}),
    *(
        _auth(
            f"identity-{name}", ".mtls.identities[0]", "must be a URI such as", mtls={"identities": [value]}
        )
        for name, value in {
            "wildcard": "*.example.com",
            "capitals": "A.example.com",
            "blank": "spiffe://a b",
            "subject": "CN=ranker",
            "no-path": "spiffe://",
            "dot": "a..com",
        }.items()
    ),
    _auth("audiences-none", ".jwt.audiences", "at least 1 items", jwt={**_JWT, "audiences": []}),
    _auth("audience-twice", ".jwt.audiences", "Duplicate value", jwt={**_JWT, "audiences": ["a", "a"]}),
    _route("targets-none", "targets", "at least 1 items", targets=[]),
    _route(
        "weights-zero", "targets", "at least one target must have a weight above 0", targets=_targets(0, 0)
    ),
    _route("weight-negative", "targets[0].weight", "greater than or equal to 0", targets=_targets(-1)),
    _route("weight-large", "targets[0].weight", "less than or equal to 1000000", targets=_targets(1_000_001)),
    _route("targets-many", "targets", "at most 16", targets=_targets(*range(1, 18))),
    _route("target-twice", "targets", "Duplicate value", targets=[*_targets(1), *_targets(2)]),
    _route("target-name", "targets[0].inference", _DNS_LABEL, targets=[{"inference": "other/ctr/v1"}]),
    _route("mirror-name", "mirror[0].inference", _DNS_LABEL, mirror=[{"inference": "/ctr"}]),
    _route("fallback-name", "fallback.inference", _DNS_LABEL, fallback={"inference": "other/"}),
    _route("timeout-zero", "timeout", "must be from 1ms to 1h", timeout="0s"),
    _route("timeout-long", "timeout", "must be from 1ms to 1h", timeout="2h"),
    _route("timeout-overflow", "timeout", "must be from 1ms to 1h", timeout="999999h"),
    _route("timeout-negative", "timeout", "should match", timeout="-1s"),
    _route("timeout-number", "timeout", "should match", timeout="50"),
    _route("retry-many", "retry.attempts", "less than or equal to 5", retry={"attempts": 6}),
    _route("retry-negative", "retry.attempts", "greater than or equal to 0", retry={"attempts": -1}),
    _route(
        "budget",
        "retry.budgetPercent",
        "less than or equal to 100",
        retry={"attempts": 1, "budgetPercent": 101},
    ),
)

_TABLE = {"uri": "file:///t.parquet"}
_USER = {"name": "user", "key": "user_id", "type": "int64"}
_PROFILES = {"name": "profiles", "entity": "user", "table": _TABLE}
_STREAMS = {"sources": [_PROFILES, stream_source()]}
_REDIS = {"address": "redis.ads:6379"}
_KNOWN = "every field must be <source>.<column> of a declared source"
_BUCKETIZE = {"field": "profiles.age", "boundaries": [1]}
_NATS = {"url": "nats://n:4222", "stream": "EVENTS", "subject": "events"}
_ONE_OPERATION = "give exactly one of lookup, bucketize, hash, cross, sequence, window, ratio, timeSince, session, dwell, log, clip, shared"

FEATURE_COMPUTE_REFUSALS: Sequence[Refusal] = (
    Refusal("features-name", feature_compute_body("a.b"), "metadata", "metadata.name must be a DNS label"),
    _features("entities-none", "entities", "at least 1 items", entities=[]),
    _features("entity-twice", "entities", "Duplicate value", entities=[_USER, _USER]),
    _features(
        "entity-name",
        "entities[0].name",
        "must be letters, digits and underscores",
        entities=[{**_USER, "name": "u-1"}],
    ),
    _features(
        "entity-key",
        "entities[0].key",
        "must be letters, digits and underscores",
        entities=[{**_USER, "key": "1d"}],
    ),
    _features("key-type", "entities[0].type", _UNSUPPORTED, entities=[{**_USER, "type": "float32"}]),
    _features("source-twice", "sources", "Duplicate value", sources=[_PROFILES, _PROFILES]),
    _features(
        "source-entity",
        "sources",
        "every source must name one of the entities",
        sources=[{**_PROFILES, "entity": "x"}],
    ),
    _features(
        "source-named-like-entity",
        "sources",
        "a source must not have the name of an entity",
        sources=[_PROFILES, {**_PROFILES, "name": "user"}],
    ),
    _features(
        "table-in-a-registry",
        "sources[0].table.uri",
        "a table has no version",
        sources=[{**_PROFILES, "table": {"uri": "oci://registry.example.com/ads/users"}}],
    ),
    _features(
        "table-uri",
        "sources[0].table.uri",
        "must begin with file://",
        sources=[{**_PROFILES, "table": {"uri": "http://x/y"}}],
    ),
    _features("features-none", "features", "at least 1 items", features=[]),
    _features(
        "features-many",
        "features",
        "at most 256",
        features=[{"name": f"f{n}", "bucketize": _BUCKETIZE} for n in range(257)],
    ),
    _features(
        "feature-twice", "features", "Duplicate value", features=[{"name": "f", "bucketize": _BUCKETIZE}] * 2
    ),
    _feature("no-operation", "", _ONE_OPERATION),
    _feature(
        "two-operations",
        "",
        _ONE_OPERATION,
        bucketize=_BUCKETIZE,
        hash={"field": "profiles.age", "buckets": 2},
    ),
    _feature(
        "field-without-dot",
        ".hash.field",
        "must be <source>.<column> or <entity>.<key>",
        hash={"field": "age", "buckets": 2},
    ),
    _features(
        "lookup-of-nothing",
        "features",
        _KNOWN,
        features=[{"name": "f", "lookup": {"field": "x.y", "type": "int64"}}],
    ),
    _features(
        "bucketize-of-nothing",
        "features",
        _KNOWN,
        features=[{"name": "f", "bucketize": {"field": "user.age", "boundaries": [1]}}],
    ),
    _features(
        "hash-of-nothing",
        "features",
        _KNOWN,
        features=[{"name": "f", "hash": {"field": "x.y", "buckets": 2}}],
    ),
    _feature(
        "hash-of-padding-alone",
        ".hash.buckets",
        "buckets must be at least 2 with padded: the first one is padding",
        hash={"field": "user.user_id", "buckets": 1, "padded": True},
    ),
    _features(
        "cross-of-nothing",
        "features",
        _KNOWN,
        features=[{"name": "f", "cross": {"fields": ["user.user_id", "x.y"], "buckets": 2}}],
    ),
    _feature("lookup-type", ".lookup.type", _UNSUPPORTED, lookup={"field": "profiles.a", "type": "int8"}),
    _feature(
        "lookup-default",
        ".lookup.default",
        "the default of an int64 must be a whole number",
        lookup={"field": "profiles.a", "type": "int64", "default": "0.5"},
    ),
    _feature(
        "lookup-default-word",
        ".lookup.default",
        "should match",
        lookup={"field": "profiles.a", "type": "float32", "default": "NaN"},
    ),
    _feature(
        "lookup-length",
        ".lookup.length",
        "greater than or equal to 1",
        lookup={"field": "profiles.a", "type": "int64", "length": 0},
    ),
    _feature(
        "boundaries-descending",
        ".bucketize.boundaries",
        "boundaries must be ascending",
        bucketize={"field": "profiles.age", "boundaries": [2, 1]},
    ),
    _feature(
        "boundaries-twice",
        ".bucketize.boundaries",
        "Duplicate value",
        bucketize={"field": "profiles.age", "boundaries": [1, 1]},
    ),
    _feature(
        "boundaries-none",
        ".bucketize.boundaries",
        "at least 1 items",
        bucketize={"field": "profiles.age", "boundaries": []},
    ),
    _feature(
        "buckets-zero",
        ".hash.buckets",
        "greater than or equal to 1",
        hash={"field": "profiles.a", "buckets": 0},
    ),
    _feature(
        "buckets-many",
        ".hash.buckets",
        "less than or equal to",
        hash={"field": "profiles.a", "buckets": 2**31},
    ),
    _feature(
        "cross-of-one", ".cross.fields", "at least 2 items", cross={"fields": ["user.user_id"], "buckets": 2}
    ),
    _feature(
        "cross-of-five",
        ".cross.fields",
        "at most 4",
        cross={"fields": [f"profiles.c{n}" for n in range(5)], "buckets": 2},
    ),
    _feature(
        "cross-of-one-twice",
        ".cross.fields",
        "Duplicate value",
        cross={"fields": ["profiles.a", "profiles.a"], "buckets": 2},
    ),
    _features(
        "entity-reserved",
        "entities[0].name",
        "must not be feature or request",
        entities=[{**_USER, "name": "request"}, _USER],
    ),
    _features(
        "source-reserved",
        "sources[1].name",
        "must not be feature or request",
        sources=[_PROFILES, {**_PROFILES, "name": "feature"}],
    ),
    _features(
        "source-of-nothing",
        "sources[1]",
        "give exactly one of table, stream",
        sources=[_PROFILES, {"name": "clicks", "entity": "user"}],
    ),
    _features(
        "source-of-both",
        "sources[1]",
        "give exactly one of table, stream",
        sources=[_PROFILES, {**stream_source(), "table": _TABLE}],
    ),
    _table("refresh-short", ".refresh", "must be from 10s to 168h", refresh="5s"),
    _table("refresh-long", ".refresh", "must be from 10s to 168h", refresh="169h"),
    _table("refresh-no-duration", ".refresh", "should match", refresh="often"),
    _table(
        "refresh-of-a-pinned-one",
        ".refresh",
        "a table with a sha256 never changes: remove refresh or sha256",
        refresh="10m",
        sha256="a" * 64,
    ),
    _table("percent-above", ".minKeysPercent", "less than or equal to 100", minKeysPercent=101),
    _table("percent-below", ".minKeysPercent", "greater than or equal to 0", minKeysPercent=-1),
    _table(
        "most-below",
        ".maxKeysPercent",
        "greater than or equal to 100",
        refresh="10m",
        maxKeysPercent=99,
    ),
    _table(
        "most-above",
        ".maxKeysPercent",
        "less than or equal to 10000",
        refresh="10m",
        maxKeysPercent=10_001,
    ),
    _table(
        "most-without-refresh",
        ".maxKeysPercent",
        "maxKeysPercent compares a changed file with the loaded one",
        maxKeysPercent=200,
    ),
    _features("event-storage", "eventStorage", "must be from 64Mi to 1Ti", eventStorage="1Mi"),
    _features("table-storage", "tableStorage", "must be from 64Mi to 1Ti", tableStorage="2Ti"),
    _features("store-none", "store", "give exactly one of embedded, redis", **_STREAMS, store={}),
    _features(
        "store-of-both",
        "store",
        "give exactly one of embedded, redis",
        **_STREAMS,
        store={"embedded": {}, "redis": _REDIS},
    ),
    _features(
        "store-without-streams",
        "store",
        "a store is for the events of streams, and no source is a stream: remove store",
        store={"redis": _REDIS},
    ),
    _store("address-without-port", ".address", "must be <host>:<port>", address="redis.ads"),
    _store("address-of-a-url", ".address", "must be <host>:<port>", address="redis://redis.ads:6379"),
    _store("prefix", ".keyPrefix", "must be letters, digits, dots, dashes", keyPrefix="ads {x}"),
    _store("timeout-none", ".timeout", "must be from 1ms to 10s", timeout="0s"),
    _store("timeout-long", ".timeout", "must be from 1ms to 10s", timeout="11s"),
    _features("request-type", "request[0].type", _UNSUPPORTED, request=[{"name": "x", "type": "float64"}]),
    _features(
        "request-name",
        "request[0].name",
        "must be letters, digits and underscores",
        request=[{"name": "x-y", "type": "int64"}],
    ),
    _stream("dead-none", ".deadLetters", "give exactly one of subject, topic", deadLetters={}),
    _stream(
        "dead-both",
        ".deadLetters",
        "give exactly one of subject, topic",
        deadLetters={"subject": "dead", "topic": "dead"},
    ),
    _stream(
        "dead-elsewhere",
        ".deadLetters",
        "deadLetters goes to the stream's own broker",
        deadLetters={"topic": "dead"},
    ),
    _stream(
        "dead-kafka-subject",
        ".deadLetters",
        "deadLetters goes to the stream's own broker",
        kafka={},
        deadLetters={"subject": "dead"},
    ),
    _stream(
        "dead-itself",
        ".deadLetters",
        "deadLetters must be another subject or topic than the stream's",
        deadLetters={"subject": "events.clicks"},
    ),
    _stream(
        "dead-kafka-itself",
        ".deadLetters",
        "deadLetters must be another subject or topic than the stream's",
        kafka={},
        deadLetters={"topic": "clicks"},
    ),
    _stream(
        "dead-subject",
        ".deadLetters.subject",
        "must be words of letters",
        deadLetters={"subject": "dead.>"},
    ),
    _stream(
        "dead-reason",
        ".deadLetters.reasons[0]",
        _UNSUPPORTED,
        deadLetters={"subject": "dead", "reasons": ["Broken"]},
    ),
    _stream(
        "dead-reasons-none",
        ".deadLetters.reasons",
        "at least 1 items",
        deadLetters={"subject": "dead", "reasons": []},
    ),
    _stream(
        "dead-reason-twice",
        ".deadLetters.reasons",
        "Duplicate value",
        deadLetters={"subject": "dead", "reasons": ["TooLate", "TooLate"]},
    ),
    _stream("two-brokers", "", "give exactly one of nats, kafka", kafka={}, nats=_NATS),
    _stream("no-broker", "", "give exactly one of nats, kafka", nats=None),
    _stream("kafka-mechanism", ".kafka.sasl", _UNSUPPORTED, kafka={"sasl": "GSSAPI", "secretName": "s"}),
    _stream(
        "kafka-sasl",
        ".kafka.sasl",
        "sasl needs a secretName",
        kafka={"sasl": "SCRAM-SHA-512"},
    ),
    _stream("event-time", ".eventTime", "must be letters, digits, dashes", eventTime="a.b"),
    _stream("field-type", ".fields[0].type", _UNSUPPORTED, fields=[{"name": "x", "type": "float32"}]),
    _stream("field-twice", ".fields", "Duplicate value", fields=[{"name": "x", "type": "int64"}] * 2),
    _stream(
        "protobuf-number",
        ".protobuf.numbers.ts",
        "greater than or equal to 1",
        protobuf={"numbers": {"ts": 0}},
    ),
    _stream("protobuf-empty", ".protobuf.numbers", "at least 1", protobuf={"numbers": {}}),
    _stream("lateness", ".lateness", "must be from 0s to 168h", lateness="169h"),
    _stream(
        "lateness-beyond-ttl", ".lateness", "lateness must not be longer than ttl", lateness="2m", ttl="1m"
    ),
    _stream("ttl-zero", ".ttl", "must be from 1s to 8760h", ttl="0s"),
    _stream("ttl-long", ".ttl", "must be from 1s to 8760h", ttl="8761h"),
    _stream("events-none", ".maxEvents", "should be greater than or equal to 1", maxEvents=0),
    _stream("events-many", ".maxEvents", "should be less than or equal to 4096", maxEvents=4097),
    _feature(
        "sequence-of-none",
        ".sequence.last",
        "should be greater than or equal to 1",
        sequence={"field": "clicks.item_id", "last": 0},
    ),
    _feature(
        "sequence-in-one-bucket",
        ".sequence.buckets",
        "should be greater than or equal to 2",
        sequence={"field": "clicks.item_id", "last": 1, "buckets": 1},
    ),
    _feature(
        "condition-without-values",
        ".sequence.filter.values",
        "should have at least 1 items",
        sequence={"field": "clicks.item_id", "last": 1, "filter": {"field": "clicks.click", "values": []}},
    ),
    _feature(
        "session-without-gap",
        ".session.gap",
        "must be from 1s to 8760h",
        session={"source": "clicks", "measure": "Events", "gap": "0s"},
    ),
    _feature(
        "session-measure", ".session.measure", _UNSUPPORTED, session={"source": "clicks", "measure": "Length"}
    ),
    _feature(
        "dwell-of-none",
        ".dwell.last",
        "should be greater than or equal to 1",
        dwell={"source": "clicks", "last": 0},
    ),
    _window("of-nothing", ".over", "must be from 1s to 8760h", over="0s"),
    _window("aggregate", ".aggregate", _UNSUPPORTED, aggregate="Median"),
    _window("every", ".every", "every must not be longer than over", every="2h"),
    _window("every-zero", ".every", "must be from 1s to 8760h", every="0s"),
    _window("default", ".default", "default is for Mean, Min, Max and Last", aggregate="Sum", default="1"),
    _ratio(
        "numerator",
        ".numerator.aggregate",
        _UNSUPPORTED,
        numerator={"field": "clicks.click", "aggregate": "x", "over": "1h"},
    ),
    _ratio(
        "denominator",
        ".denominator.aggregate",
        _UNSUPPORTED,
        denominator={"field": "clicks.click", "aggregate": "x", "over": "1h"},
    ),
    _ratio("weight", ".weight", "must be a decimal number in quotes", weight="-1"),
    _feature(
        "since-nothing",
        ".timeSince.source",
        "must be letters, digits and underscores",
        timeSince={"source": "clicks.ts"},
    ),
    _feature(
        "clip-to-nothing",
        ".clip.min",
        "min must not be greater than max",
        clip={"field": "request.x", "min": 2, "max": 1},
    ),
    _feature(
        "shared-by-nothing",
        ".shared.featureCompute",
        "must be a DNS label",
        shared={"featureCompute": "a/b/c"},
    ),
    _feature(
        "shared-column",
        ".shared.feature",
        "must be letters, digits and underscores",
        shared={"featureCompute": "live", "feature": "profiles.age"},
    ),
    _feature(
        "log-without-dot", ".log.field", "must be <source>.<column> or <entity>.<key>", log={"field": "age"}
    ),
    _features(
        "lookup-of-a-feature",
        "features",
        _KNOWN,
        features=[{"name": "f", "lookup": {"field": "feature.g", "type": "int64"}}],
    ),
)

_OF_A_POOL = {"kind": "ComputePool", "namespace": None, "name": "cpu-a"}
COMPUTE_OVERRIDE_REFUSALS: Sequence[Refusal] = (
    _override("nothing", "", "set exactly one of pin, floor and hold"),
    _override("twice", "", "set exactly one of pin, floor and hold", pin={"replicas": 2}, hold=True),
    _override(
        "pool-pinned", ".target", "a ComputePool can only be held", target=_OF_A_POOL, pin={"replicas": 2}
    ),
    _override(
        "pool-in-a-namespace",
        ".target.namespace",
        "namespace is for kind Inference",
        target={"kind": "ComputePool"},
        hold=True,
    ),
    _override(
        "nowhere",
        ".target.namespace",
        "namespace is for kind Inference",
        target={"namespace": None},
        hold=True,
    ),
    _override("without-reason", ".reason", "must say something", reason=" ", hold=True),
    _override("without-end", ".expiresAt", "equired", expiresAt=None, hold=True),
    _override(
        "local-time", ".expiresAt", "must be a time in UTC", expiresAt="2026-01-02T00:00:00B", hold=True
    ),
    _override(
        "last-century",
        ".expiresAt",
        "must be a day that the calendar",
        expiresAt="1999-01-01T00:00:00Z",
        hold=True,
    ),
    _override("kind", ".target.kind", _UNSUPPORTED, target={"kind": "Node"}, hold=True),
)
COMPUTE_POOL_REFUSALS: Sequence[Refusal] = (
    _pool("policy-mode", ".policy.mode", _UNSUPPORTED, policy={"mode": "Automatic"}),
    _pool("policy-interval", ".policy.interval", "must be from 1s to 10m", policy={"interval": "11m"}),
    _pool("policy-dwell", ".policy.dwell", "must be from 0s to 1h", policy={"dwell": "61m"}),
    _pool(
        "policy-node-loss",
        ".policy.nodeLoss.mode",
        _UNSUPPORTED,
        policy={"nodeLoss": {"mode": "N-1"}},
    ),
    *(
        _pool(
            f"policy-nodes-{expected}",
            ".policy.nodeLoss.expectedEvery",
            message,
            policy={"nodeLoss": {"expectedEvery": expected}},
        )
        for expected, message in (
            ("0h", "must be from 1h to 100000h"),
            ("59m", "must be from 1h to 100000h"),
            ("100001h", "must be from 1h to 100000h"),
            ("-1h", "should match"),
            ("NaN", "should match"),
            ("30d", "should match"),
        )
    ),
    *(
        _pool(
            f"policy-spares-{field}-{count}",
            f".policy.nodeLoss.sharedSpares.{field}",
            says,
            policy={"nodeLoss": {"mode": "Shared", "sharedSpares": {field: count}}},
        )
        for field, count, says in (
            ("maxModels", 0, "greater than or equal to 1"),
            ("maxModels", 65, "less than or equal to 64"),
            ("maxSlices", 0, "greater than or equal to 1"),
        )
    ),
    _pool(
        "policy-spares-on-gpus",
        ".policy.nodeLoss.mode",
        "policy.nodeLoss.mode Shared is only for CPU slices",
        policy={"nodeLoss": {"mode": "Shared"}},
        slice={"cpu": None, "mps": _MPS},
    ),
    _pool(
        "policy-freeze",
        ".policy.freeze[0].duration",
        "must be from 1m to 168h",
        policy={"freeze": [{"schedule": "0 18 * * FRI", "duration": "169h"}]},
    ),
    _pool(
        "policy-horizon",
        ".policy.forecast.horizon",
        "must be from 10s to 1h",
        policy={"forecast": {"horizon": "9s"}},
    ),
    *(
        _pool(
            f"policy-quantile-{quantile}",
            ".policy.forecast.quantile",
            "must be more than 0.5 and less than 1, like '0.9'",
            policy={"forecast": {"quantile": quantile}},
        )
        for quantile in ("0.5", "0.50", "0.49", "1", "1.0", "9")
    ),
    _pool(
        "policy-quantile-text",
        ".policy.forecast.quantile",
        "must be a decimal number in quotes",
        policy={"forecast": {"quantile": ".9"}},
    ),
    *(
        _pool(
            f"policy-event-{name}",
            f".policy.events[0]{field}",
            message,
            policy={
                "events": [
                    {"name": "sale", "at": "2026-11-27T20:00:00Z", "duration": "2h", "factor": "3", **change}
                ]
            },
        )
        for name, field, message, change in (
            ("once-or-again", "", "set exactly one of schedule and at", {"schedule": "0 20 * * *"}),
            ("day", ".at", "must be a day that the calendar has", {"at": "2026-02-30T20:00:00Z"}),
            ("blank", ".at", "must be a time in UTC and in quotes", {"at": "2026-11-27 20:00:00Z"}),
            ("length", ".duration", "must be from 1m to 168h", {"duration": "59s"}),
            ("factor-one", ".factor", "must be more than 1 and at most 100", {"factor": "1.0"}),
            ("factor-less", ".factor", "must be more than 1 and at most 100", {"factor": "0.5"}),
            ("factor-absurd", ".factor", "must be more than 1 and at most 100", {"factor": "100.1"}),
            ("factor-word", ".factor", "must be a decimal number in quotes", {"factor": "thrice"}),
            ("label", ".name", "must be a DNS label", {"name": "The Sale"}),
        )
    ),
    _pool(
        "policy-all",
        ".policy.moves.maxPercent",
        "less than or equal to 100",
        policy={"moves": {"maxPercent": 101}},
    ),
    Refusal(
        "pool-no-labels",
        {**compute_pool_body(), "spec": {**compute_pool_body()["spec"], "nodeSelector": {}}},
        "spec.nodeSelector",
        "at least 1 properties",
    ),
    _pool("slice-cpu", ".slice.cpu.cpu", "must be from 100m to 1024", slice={"cpu": {"cpu": "99m"}}),
    _pool(
        "slice-memory", ".slice.cpu.memory", "must be from 256Mi to 64Ti", slice={"cpu": {"memory": "255Mi"}}
    ),
    _pool("slice-none", ".slice", "set exactly one of cpu and mps", slice={"cpu": None}),
    _pool("slice-two", ".slice", "set exactly one of cpu and mps", slice={"mps": _MPS}),
    _mps("mps-one-slice", ".slicesPerGPU", "greater than or equal to 2", slicesPerGPU=1),
    _mps("mps-many-slices", ".slicesPerGPU", "less than or equal to 48", slicesPerGPU=49),
    _mps("mps-root", ".runAsUser", "greater than or equal to 1", runAsUser=0),
    _mps("mps-cpu", ".cpu", "must be from 100m to 1024", cpu="1m"),
    _mps("mps-memory", ".memory", "must be from 256Mi to 64Ti", memory="1Mi"),
    _pool("floor", ".tiers.realtime.floor", "greater than or equal to 0", tiers={"realtime": {"floor": -1}}),
    _pool(
        "warm-spares",
        ".tiers.realtime.warmSpares",
        "greater than or equal to 0",
        tiers={"realtime": {"warmSpares": -1}},
    ),
    _pool(
        "warm-spares-above-ceiling",
        ".tiers.realtime.warmSpares",
        "warmSpares must not be above ceiling",
        tiers={"realtime": {"warmSpares": 2, "ceiling": 1}},
    ),
    _pool(
        "floor-above-ceiling",
        ".tiers.offline.floor",
        "floor must not be above ceiling",
        tiers={"offline": {"floor": 2, "ceiling": 1}},
    ),
    _pool(
        "toleration-operator",
        ".tolerations[0].operator",
        "Unsupported value",
        tolerations=[{"key": "a", "operator": "Like"}],
    ),
    _pool(
        "toleration-effect",
        ".tolerations[0].effect",
        "Unsupported value",
        tolerations=[{"key": "a", "effect": "Never"}],
    ),
    _pool(
        "toleration-value",
        ".tolerations[0].value",
        "value is only for operator Equal",
        tolerations=[{"key": "a", "operator": "Exists", "value": "b"}],
    ),
    Refusal("pool-name", compute_pool_body("Pool.A"), "metadata", "metadata.name must be a DNS label"),
)

REFUSALS: Sequence[Refusal] = (
    *INFERENCE_REFUSALS,
    *MODEL_ACCESS_REFUSALS,
    *FEATURE_COMPUTE_REFUSALS,
    *COMPUTE_POOL_REFUSALS,
    *COMPUTE_OVERRIDE_REFUSALS,
)

_SAME_NAME = "the served name cannot change, since clients ask for it"
_DECISION: Mapping[str, Any] = {
    "apiVersion": "tidegate.io/v1alpha1",
    "kind": "AllocationDecision",
    "metadata": {"name": "cpu-a-1"},
    "spec": {"pool": "cpu-a", "at": "2026-01-01T00:00:00Z", "mode": "Auto", "solver": "LP"},
}
REFUSED_CHANGES: tuple[RefusedChange, ...] = (
    RefusedChange(
        "another-target",
        compute_override_body("moved", hold=True),
        compute_override_body("moved", hold=True, target={"name": "cvr"}),
        "spec.target",
        "the target cannot change",
    ),
    RefusedChange(
        "what-was-decided",
        _DECISION,
        {**_DECISION, "spec": {**_DECISION["spec"], "mode": "Hold"}},
        "spec",
        "what was decided stays as it was",
    ),
    RefusedChange(
        "cpu-slices-to-mps",
        compute_pool_body("changed"),
        compute_pool_body("changed", slice={"cpu": None, "mps": _MPS}),
        "spec.slice",
        "slices cannot change from cpu to mps or back",
    ),
    RefusedChange(
        "from-requests-to-a-batch",
        inference_body(tier="offline"),
        inference_body(tier="offline", batch=batch_spec()),
        "spec",
        "batch cannot be added or removed",
    ),
    RefusedChange(
        "another-served-name",
        inference_body(model={"name": "ctr"}),
        inference_body(model={"name": "cvr"}),
        "spec",
        _SAME_NAME,
    ),
    RefusedChange(
        "served-name-left-out", inference_body(model={"name": "other"}), inference_body(), "spec", _SAME_NAME
    ),
)
