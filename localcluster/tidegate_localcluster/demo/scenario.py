"""The steps of the demo, in their order."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from tidegate_localcluster.background import run_beside
from tidegate_localcluster.demo import helm
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.live_rating import HISTORY, Delays, rate_film
from tidegate_localcluster.demo.load import CheckedLoad, LoadReport, ScoringBatch, Tensors
from tidegate_localcluster.demo.platforms import (
    LOCAL_MODELS_URI,
    MODELS_NAMESPACE,
    NATS_IMAGE,
    DemoEndpoints,
    DemoPlatform,
    DemoSite,
)
from tidegate_localcluster.demo.prometheus import DataPlaneCounters, LoadMetrics, ObservedLoad
from tidegate_localcluster.demo.rating_stream import RatingStream
from tidegate_localcluster.demo.recipe import PublishedRatings, TrainedVersion, TrainingRecipe
from tidegate_localcluster.demo.scoring import (
    GatewayClient,
    HeldOutRows,
    OnlineScores,
    ScoredAnswer,
    compute_features,
    format_auc,
    score_features,
    score_online,
)
from tidegate_localcluster.demo.steps import StepPrinter
from tidegate_localcluster.forwards import SERVICE_PORTS
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.state import Forward

NAMESPACE: Final = MODELS_NAMESPACE
INFERENCE: Final = "din"
ACCESS: Final = "din"
MODEL: Final = "din"
FEATURES: Final = "din-features"
OBJECTS: Final = (f"inference/{INFERENCE}", f"featurecompute/{FEATURES}", f"modelaccess/{ACCESS}")
KINDS: Final = "inferences,modelaccesses,featurecomputes"
BROKER: Final = "movielens-nats"
BROKER_PORT: Final = 4222
BROKER_MANIFEST: Final = "nats.yaml"
MANIFESTS: Final = ("inference.yaml", "feature-compute.yaml", "model-access.yaml")
READY_TIMEOUT_S: Final = 180.0
SWAP_TIMEOUT_S: Final = 60.0
ROWS_UNDER_LOAD: Final = 16
ANSWERS_PER_VERSION: Final = 500
RATINGS: Final = 100
"""Users that rate a film each, so that a p99 has a meaning."""
FIRST, SECOND = "1", "2"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a run."""

    source_root: Path
    answers_per_version: int = ANSWERS_PER_VERSION


class _AccessScorer:
    """One load client's connection to the ModelAccess."""

    def __init__(self, address: str) -> None:
        self._gateway = GatewayClient(address, NAMESPACE)

    def score(self, inputs: Tensors) -> ScoredAnswer:
        return self._gateway.score(ACCESS, MODEL, inputs)

    def close(self) -> None:
        self._gateway.close()


class Demo:
    """One run. Each step may be repeated: a second run reuses what the first one created."""

    def __init__(
        self, platform: DemoPlatform, recipe: TrainingRecipe, settings: DemoSettings, steps: StepPrinter
    ) -> None:
        """Run on `platform`, with the model that `recipe` trains."""
        self._platform = platform
        self._recipe = recipe
        self._settings = settings
        self._steps = steps

    def run(self) -> None:
        """Run all steps. Raises LocalClusterError, and then `steps.title` names the failed step."""
        steps = self._steps
        with run_beside(self._train_versions, steps.print_progress) as training:
            with steps.print_step(self._platform.title):
                site = self._platform.start(steps.print_progress)
            with steps.print_step("Install the chart with Helm"):
                self._install_chart(site)
            with steps.print_step("Train a recommendation model on real data, and publish version 1"):
                self._publish_model(site, training.result())
        with steps.print_step("Start a NATS server, and publish the ratings to a stream"):
            published = self._publish_ratings(site)
        with steps.print_step("Apply three custom resources, and wait until they are Ready"):
            self._apply_manifests(site)
        with self._platform.open_endpoints(site) as endpoints, _forward_broker(site) as broker:
            stream = RatingStream(broker, published.subject)
            gateway = GatewayClient(endpoints.gateway, NAMESPACE)
            rows = HeldOutRows.read_parquet(self._recipe.held_out_path)
            metrics = _make_metrics(endpoints)
            before = metrics.read_counters() if metrics is not None else None
            with steps.print_step(f"Ask for {len(rows):,} held-out ratings through the gateway"):
                features = compute_features(gateway, FEATURES, rows.make_inputs(published.shift_ms))
                scores = self._score_rows(gateway, features, rows, FIRST)
                self._show_scores(FIRST, scores)
            with steps.print_step("Rate a film: the next answer has it"):
                requests = scores.requests + self._rate_film(gateway, stream, rows)
            with steps.print_step("Publish version 2 under load, and swap to it"):
                report = self._swap_versions(site, endpoints, features, rows)
                if before is not None:
                    before = before.add_requests(FIRST, requests)
                self._show_load(report, self._observe_load(metrics, before, report))
                if report.problems:
                    raise DemoError(f"requests under load: {'; '.join(report.problems)}")
            with steps.print_step("Ask again: version 2 answers"):
                self._show_scores(SECOND, self._score_rows(gateway, features, rows, SECOND))
            gateway.close()
            self._print_next_steps(site, endpoints)

    def _install_chart(self, site: DemoSite) -> None:
        root = self._settings.source_root
        site.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(root / "crds"))
        definitions = [f"{plural}.tidegate.io" for plural in KINDS.split(",")]
        site.kubectl.wait_established(definitions, timeout_s=30.0)
        self._steps.print_progress(f"helm upgrade --install {helm.RELEASE} charts/tidegate")
        site.helm.install_chart(root / "charts" / "tidegate", site.values)
        self._steps.print_text(site.kubectl.run("get", "deployments", "-n", helm.NAMESPACE))

    def _train_versions(self, progress: Progress) -> Mapping[str, TrainedVersion]:
        """Train both versions, which needs no cluster."""
        return self._recipe.train_versions((FIRST, SECOND), progress)

    def _publish_model(self, site: DemoSite, trained: Mapping[str, TrainedVersion]) -> None:
        for version in trained.values():
            self._steps.print_progress(
                f"version {version.version}: AUC {version.auc:.4f} offline, ONNX and jax differ by "
                f"{version.max_abs_difference:.1e} at most, sha256 {version.sha256[:12]}…, "
                f"trained in {version.seconds:.1f} s"
            )
        if not self._recipe.is_published(FIRST, site.models_folder):
            # A version's files never change while it is served: what an earlier recipe published goes first.
            self._delete_objects(site, *OBJECTS)
            self._recipe.publish_tables(site.models_folder)
            path = self._recipe.publish_version(FIRST, site.models_folder)
            self._steps.print_progress(f"published {path}")
        site.upload_models()

    def _publish_ratings(self, site: DemoSite) -> PublishedRatings:
        """Start the broker and publish the ratings to its stream, unless they are there from an earlier run."""
        site.kubectl.ensure_namespace(NAMESPACE)
        manifest = (self._recipe.example_folder / BROKER_MANIFEST).read_text()
        self._steps.print_progress(f"kubectl apply -n {NAMESPACE} -f examples/movielens/{BROKER_MANIFEST}")
        self._steps.print_text(site.kubectl.apply(manifest.replace(NATS_IMAGE, site.nats_image), NAMESPACE))
        site.kubectl.wait("condition=Available", (f"deployment/{BROKER}",), NAMESPACE, READY_TIMEOUT_S)
        with _forward_broker(site) as broker:
            published = self._recipe.publish_events(broker, self._steps.print_progress)
        state = "published by this run" if published.is_new else "published before"
        self._steps.print_progress(f"stream {published.stream} has {published.count:,} ratings, {state}")
        if published.is_new:
            # Pods that have read another stream serve its events until they notice.
            self._delete_objects(site, f"featurecompute/{FEATURES}")
        return published

    def _delete_objects(self, site: DemoSite, *objects: str) -> None:
        site.kubectl.run(
            "delete", *objects, "-n", NAMESPACE, "--ignore-not-found", "--wait", timeout_s=READY_TIMEOUT_S
        )

    def _apply_manifests(self, site: DemoSite) -> None:
        documents = [(self._recipe.example_folder / name).read_text() for name in MANIFESTS]
        text = "---\n".join(documents).replace(LOCAL_MODELS_URI, site.models_uri)
        self._steps.print_progress(f"kubectl apply -n {NAMESPACE} -f examples/movielens")
        self._steps.print_text(site.kubectl.apply(text, NAMESPACE))
        self._steps.print_progress(f"kubectl wait --for=condition=Ready {' '.join(OBJECTS)}")
        site.kubectl.wait("condition=Ready", OBJECTS, NAMESPACE, READY_TIMEOUT_S)
        site.kubectl.wait("condition=Fresh", (f"featurecompute/{FEATURES}",), NAMESPACE, READY_TIMEOUT_S)
        self._wait_serving(site, FIRST)
        self._steps.print_text(site.kubectl.run("get", KINDS, "-n", NAMESPACE))
        self._steps.print_text(site.kubectl.run("get", "pods", "-n", NAMESPACE))

    def _score_rows(
        self, gateway: GatewayClient, features: Tensors, rows: HeldOutRows, version: str
    ) -> OnlineScores:
        return score_online(gateway, ACCESS, MODEL, features, rows, version)

    def _show_scores(self, version: str, scores: OnlineScores) -> None:
        self._steps.print_progress(
            f"version {version}: AUC online {format_auc(scores.auc_online)}, offline {format_auc(scores.auc_offline)}; "
            f"scores differ by {scores.max_abs_difference:.1e} at most, over {len(scores.scores):,} rows"
        )

    def _rate_film(self, gateway: GatewayClient, stream: RatingStream, rows: HeldOutRows) -> int:
        """Show that a rating changes the next answer; return the number of requests to the model."""
        user_id, item_id = int(rows.user_ids[-1, 0]), int(rows.item_ids[0, 0])
        keys = {"user_id": rows.user_ids[-1:], "item_id": rows.item_ids[:1]}
        rating = rate_film(stream, user_id, lambda: compute_features(gateway, FEATURES, keys))
        moments = {"before": rating.before, "after": rating.after}
        for moment, features in moments.items():
            (answer,) = score_features(gateway, ACCESS, MODEL, features)
            newest = ", ".join(str(item) for item in features[HISTORY][0, :3])
            self._steps.print_progress(
                f"{moment}: user {user_id} likes films {newest}, …; score of film {item_id}: {answer.scores[0]:.6f}"
            )
        self._steps.print_progress(
            f"the rating of film {rating.rated_item} was in an answer {rating.seconds * 1000:.0f} ms after it was sent"
        )
        delays = self._measure_delays(gateway, stream, rows)
        self._steps.print_progress(f"from a rating to an answer that has it: {delays.format_text()}")
        return len(moments)

    def _measure_delays(self, gateway: GatewayClient, stream: RatingStream, rows: HeldOutRows) -> Delays:
        """Rate a film as each of many users, one after the other."""
        users, positions = np.unique(rows.user_ids[:, 0], return_index=True)
        seconds: list[float] = []
        for user_id, position in zip(users[:RATINGS], positions[:RATINGS], strict=True):
            place = slice(position, position + 1)
            keys = {"user_id": rows.user_ids[place], "item_id": rows.item_ids[place]}
            ask_features = partial(compute_features, gateway, FEATURES, keys)
            seconds.append(rate_film(stream, int(user_id), ask_features).seconds)
        return Delays(seconds)

    def _swap_versions(
        self, site: DemoSite, endpoints: DemoEndpoints, features: Tensors, rows: HeldOutRows
    ) -> LoadReport:
        count = self._settings.answers_per_version
        with CheckedLoad(lambda: _AccessScorer(endpoints.gateway), make_batches(features, rows)) as load:
            load.wait_for(FIRST, count, SWAP_TIMEOUT_S)
            self._steps.print_progress(f"{count} answers of version 1; publishing version 2")
            self._recipe.publish_version(SECOND, site.models_folder)
            site.upload_models()
            self._patch_version(site, SECOND)
            self._wait_serving(site, SECOND)
            self._steps.print_progress("status.versions.serving is 2")
            load.wait_for(SECOND, count, SWAP_TIMEOUT_S)
            return load.finish()

    def _observe_load(
        self, metrics: LoadMetrics | None, before: DataPlaneCounters | None, report: LoadReport
    ) -> ObservedLoad | None:
        if metrics is None or before is None:
            return None
        self._steps.print_progress("waiting until Prometheus has seen the last of them")
        return metrics.observe_since(before, report.sent, report.seconds)

    def _patch_version(self, site: DemoSite, version: str) -> None:
        patch = json.dumps({"spec": {"model": {"version": version}}})
        arguments = ("patch", "inference", INFERENCE, "-n", NAMESPACE, "--type=merge", "-p", patch)
        self._steps.print_progress(f"kubectl {shlex.join(arguments)}")
        site.kubectl.run(*arguments)

    def _wait_serving(self, site: DemoSite, version: str) -> None:
        site.kubectl.wait(
            f"jsonpath={{.status.versions.serving}}={version}", OBJECTS[:1], NAMESPACE, SWAP_TIMEOUT_S
        )

    def _show_load(self, report: LoadReport, observed: ObservedLoad | None) -> None:
        versions = sorted({*report.versions, *(observed.triton if observed is not None else ())})

        def format_ms(value: float | None) -> str:
            return "-" if value is None else f"{value:.1f} ms"

        rows = [
            ("requests sent", f"{report.sent:,}", f"{observed.envoy:,}" if observed else "-"),
            ("failed", f"{report.failed:,}", "-"),
            ("wrong", f"{report.wrong:,}", "-"),
            *(
                (
                    f"answered by version {version}",
                    f"{report.versions.get(version, 0):,}",
                    f"{observed.triton.get(version, 0):,}" if observed and observed.triton else "-",
                )
                for version in versions
            ),
            ("p50", format_ms(report.quantile_ms(0.5)), format_ms(observed.p50_ms if observed else None)),
            ("p99", format_ms(report.quantile_ms(0.99)), format_ms(observed.p99_ms if observed else None)),
        ]
        title = f"Version swap under load ({report.seconds:.1f} s, {ROWS_UNDER_LOAD} rows per request)"
        self._steps.print_table(title, ("", "clients", "Prometheus"), rows)
        if observed is not None and sum(observed.triton.values()) > sum(report.versions.values()):
            self._steps.print_progress(
                "Triton also counts the one request by which the agent tries a version out"
            )

    def _print_next_steps(self, site: DemoSite, endpoints: DemoEndpoints) -> None:
        say = self._steps.print_text
        say(f"\nDone in {self._steps.total_s:.0f} s. The cluster keeps running.\n")
        gateway = endpoints.gateway
        if endpoints.persistent:
            for name, address in (
                ("gateway", gateway),
                ("dashboard", endpoints.dashboard and f"{endpoints.dashboard}, with a token"),
                ("Prometheus", endpoints.prometheus),
            ):
                say(f"{name:<11}{f'http://{address}' if address else 'not installed'}")
        else:
            service = SERVICE_PORTS[Forward.GATEWAY]
            gateway = f"127.0.0.1:{service.port}"
            say("The ports that this demo forwarded end with it; open one again with")
            say(f"  kubectl -n {service.namespace} port-forward service/{service.name} {service.port}")
        say("\nNext:")
        kubectl = f"{site.kubectl_command} -n {NAMESPACE}"
        patch = json.dumps({"spec": {"model": {"version": FIRST}}})
        say(f"  {site.dashboard_command}")
        say(f"  {kubectl} get {KINDS}")
        say(f"  {kubectl} patch inference {INFERENCE} --type=merge -p '{patch}'")
        say(f"  curl -H 'x-tidegate-access: {NAMESPACE}/{ACCESS}' http://{gateway}/v2/models/{MODEL}")


def _forward_broker(site: DemoSite) -> AbstractContextManager[str]:
    return site.kubectl.forward_port(f"service/{BROKER}", BROKER_PORT, NAMESPACE)


def _make_metrics(endpoints: DemoEndpoints) -> LoadMetrics | None:
    if endpoints.prometheus is None:
        return None
    return LoadMetrics(endpoints.prometheus, NAMESPACE, INFERENCE, MODEL)


def make_batches(features: Tensors, rows: HeldOutRows) -> Sequence[ScoringBatch]:
    """Split rows into requests of a few rows, each with every version's correct scores."""
    return tuple(
        ScoringBatch(
            inputs={name: values[start : start + ROWS_UNDER_LOAD] for name, values in features.items()},
            expected={
                version: scores[start : start + ROWS_UNDER_LOAD] for version, scores in rows.scores.items()
            },
        )
        for start in range(0, len(rows) - ROWS_UNDER_LOAD + 1, ROWS_UNDER_LOAD)
    )
