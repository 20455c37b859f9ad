from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from builders.desired import a_desired_state
from builders.events import a_click_plan
from tidegate_dataplane.agent import state
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.formats import UNKNOWN_GRAPH
from tidegate_dataplane.agent.model_config import config_digest, render_config
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.report import CurrentStep, make_report
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.agent.state import (
    AgentMemory,
    CleanUp,
    FetchArtefact,
    LoadVersions,
    ObservedPod,
    RefuseOrder,
    ServerState,
    SwitchGraph,
    Wait,
)
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.contract import (
    AgentPhase,
    BatchingMode,
    CompilePhase,
    DesiredState,
    EventStreamReport,
    FailureReason,
    FeaturePlan,
    ModelFormat,
    OwnerKind,
    RedisStore,
    StreamProblem,
    TensorSpec,
)

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 3))
WIDER = TensorSpec(name="x", dtype="FP32", shape=(-1, 4))
LOAD_FAILED = VersionRefusal(FailureReason.LOAD_FAILED, "no such operator")
FETCH_FAILED = VersionRefusal(FailureReason.FETCH_FAILED, "503")


def facts(version: int = 1, **changes: Any) -> ArtefactFacts:
    fields: dict[str, Any] = {
        "uri": "file:///models/ctr",
        "version": version,
        "format": ModelFormat.ONNX,
        "digest": f"{version:064x}",
        "files": (),
        "inputs": (X,),
        "outputs": (X,),
        "batched": True,
    }
    return ArtefactFacts.model_validate({**fields, **changes})


def features_facts(plan: FeaturePlan) -> ArtefactFacts:
    """What is stored of a plan without artefacts of its own."""
    return facts(
        uri="",
        format=ModelFormat.FEATURES,
        plan_hash=plan.compute_digest(),
        inputs=plan.inputs,
        outputs=plan.outputs,
    )


def order(version: int = 1, **changes: Any) -> DesiredState:
    return state.content_of(a_desired_state(version=version, **changes))


def digest(wanted: DesiredState, stored: ArtefactFacts, backend: OnnxBackend = OnnxBackend.HOSTED) -> str:
    config = render_config(wanted, stored, backend=backend, intra_op_threads=None)
    assert not isinstance(config, VersionRefusal)
    return config_digest(config)


def world(
    *versions: ArtefactFacts,
    ready: tuple[int, ...] = (),
    loaded_as: DesiredState | None = None,
    live: bool = True,
) -> ObservedPod:
    """A server with `ready` versions, loaded with the configuration for `loaded_as`; `versions` are on disk."""
    stored = {each.version: each for each in versions}
    wanted = loaded_as or (order(max(ready)) if ready else None)
    digests = {"ctr": digest(wanted, stored[wanted.version])} if wanted and ready else {}
    server = ServerState(live=live, ready={"ctr": ready} if ready else {}, digests=digests)
    return ObservedPod(server, {"ctr": stored})


def memory(proven: DesiredState | None = None, *setbacks: state.Setback) -> AgentMemory:
    return AgentMemory(proven=proven, setbacks=setbacks, backend=OnnxBackend.HOSTED)


def next_step(
    desired: DesiredState | None, observed: ObservedPod, known: AgentMemory, now_s: float = 0.0
) -> state.Action:
    return state.plan_step(desired, observed, known, now_s=now_s, intra_op_threads=None)


def test_without_an_order_nothing_is_done() -> None:
    assert next_step(None, world(), memory()) == Wait()


def test_what_is_not_on_disk_is_fetched_even_while_the_server_starts() -> None:
    assert next_step(order(), world(live=False), memory()) == FetchArtefact(order())


def test_what_is_on_disk_waits_for_the_server() -> None:
    assert next_step(order(), world(facts(), live=False), memory()) == Wait()


def test_then_it_is_loaded() -> None:
    step = next_step(order(), world(facts()), memory())

    assert isinstance(step, LoadVersions)
    assert step.versions == (1,)
    assert step.config["version_policy"] == {"specific": {"versions": [1]}}


def test_what_serves_as_ordered_needs_nothing() -> None:
    assert next_step(order(), world(facts(), ready=(1,)), memory(order())) == Wait()


def test_who_gave_the_order_makes_no_difference() -> None:
    again = a_desired_state(epoch=9, generation=9)

    assert next_step(again, world(facts(), ready=(1,)), memory(order())) == Wait()


def test_a_version_that_is_ready_but_was_never_proven_is_loaded_again_to_be_sure() -> None:
    assert isinstance(next_step(order(), world(facts(), ready=(1,)), memory()), LoadVersions)


def test_a_server_that_lost_its_models_gets_them_back() -> None:
    assert isinstance(next_step(order(), world(facts()), memory(order())), LoadVersions)


def test_another_setting_is_loaded_under_the_same_version() -> None:
    batching = order(batching=BatchingMode.FIXED)

    step = next_step(batching, world(facts(), ready=(1,)), memory(order()))

    assert isinstance(step, LoadVersions)
    assert "dynamic_batching" in step.config


@pytest.mark.parametrize(
    ("ready", "target", "keep", "versions"),
    [
        ((1,), 2, 2, (1, 2)),
        ((1, 2), 3, 2, (2, 3)),
        ((1, 2), 3, 3, (1, 2, 3)),
        ((1,), 2, 1, (2,)),
        # Requests without a version get the highest: a newer one has to go.
        ((1, 2), 1, 2, (1,)),
        ((3,), 2, 2, (2,)),
        ((1, 3), 2, 2, (1, 2)),
    ],
)
def test_which_versions_stay_loaded(
    ready: tuple[int, ...], target: int, keep: int, versions: tuple[int, ...]
) -> None:
    wanted = order(target, keep_versions=keep)
    stored = [facts(version) for version in {*ready, target}]

    step = next_step(wanted, world(*stored, ready=ready), memory(order(max(ready))))

    assert isinstance(step, LoadVersions)
    assert step.versions == versions


def test_a_proven_version_that_a_newer_one_answers_for_is_loaded_again_without_it() -> None:
    step = next_step(order(1), world(facts(1), facts(2), ready=(1, 2)), memory(order(1)))

    assert isinstance(step, LoadVersions)
    assert step.versions == (1,)


def test_a_version_of_another_signature_does_not_stay_under_a_foreign_configuration() -> None:
    observed = world(facts(1), facts(2, inputs=(WIDER,)), ready=(1,), loaded_as=order(1))

    step = next_step(order(2), observed, memory(order(1)))

    assert isinstance(step, LoadVersions)
    assert step.versions == (2,)


@pytest.mark.parametrize(
    "stored", [facts(uri="file:///models/other"), facts(format=ModelFormat.PYTHON), facts(plan_hash="other")]
)
def test_another_artefact_under_the_same_number_is_fetched(stored: ArtefactFacts) -> None:
    assert next_step(
        order(), ObservedPod(ServerState(live=True), {"ctr": {1: stored}}), memory()
    ) == FetchArtefact(order())


def test_a_pin_that_differs_from_what_is_stored_fetches_again() -> None:
    assert next_step(order(sha256="f" * 64), world(facts()), memory()) == FetchArtefact(
        order(sha256="f" * 64)
    )


def test_a_pin_that_names_what_is_stored_fetches_nothing() -> None:
    pinned = order(sha256=facts().digest)

    assert not isinstance(next_step(pinned, world(facts()), memory()), FetchArtefact)


def test_what_cannot_be_configured_is_refused() -> None:
    unbatched = facts(batched=False)

    step = next_step(order(batching=BatchingMode.FIXED), world(unbatched), memory())

    assert isinstance(step, RefuseOrder)
    assert step.refusal.reason is FailureReason.ARTEFACT_INVALID


class TestSetbacks:
    def test_one_is_waited_out(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=100.0)
        observed = world(facts(1), facts(2), ready=(1,))

        assert next_step(order(2), observed, known, now_s=159.0) == Wait()
        assert isinstance(next_step(order(2), observed, known, now_s=160.0), LoadVersions)

    def test_what_may_just_not_be_published_yet_is_looked_for_soon_and_ever_more_seldom(self) -> None:
        missing = VersionRefusal(FailureReason.ARTEFACT_NOT_FOUND, "there is no model.onnx")
        known = state.record_failure(memory(order(1)), order(2), missing, now_s=100.0)
        assert isinstance(next_step(order(2), world(facts(1), ready=(1,)), known, now_s=101.0), FetchArtefact)

        for _ in range(10):
            known = state.record_failure(known, order(2), missing, now_s=100.0)
        assert next_step(order(2), world(facts(1), ready=(1,)), known, now_s=159.0) == Wait()
        assert isinstance(next_step(order(2), world(facts(1), ready=(1,)), known, now_s=160.0), FetchArtefact)

    def test_what_is_proven_is_kept_up_meanwhile(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=0.0)

        step = next_step(order(2), world(facts(1), facts(2)), known, now_s=1.0)

        assert isinstance(step, LoadVersions)
        assert (step.order, step.versions) == (order(1), (1,))

    def test_what_is_proven_is_not_fetched_again_for_that(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=0.0)

        assert next_step(order(2), world(facts(2)), known, now_s=1.0) == Wait()

    def test_keeping_up_what_is_proven_does_not_forget_the_setback(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=0.0)

        known = state.record_success(known, order(1))

        assert known.find_setback(order(2)) is not None

    def test_another_order_does_not_wait_for_it(self) -> None:
        known = state.record_failure(memory(), order(2), LOAD_FAILED, now_s=0.0)

        assert next_step(order(3), world(), known) == FetchArtefact(order(3))

    def test_what_would_only_be_downloaded_again_is_retried_slowly(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), FETCH_FAILED, now_s=100.0, is_slow=True)
        [setback] = known.setbacks
        assert setback.retry_at_s == 100.0 + state.SLOW_RETRY_S[0]

    @pytest.mark.parametrize(
        ("refusal", "pauses"),
        [(FETCH_FAILED, [1, 2, 4, 8, 16, 32, 60, 60]), (LOAD_FAILED, [60, 120, 240, 480, 900, 900])],
    )
    def test_pauses_grow_to_a_limit(self, refusal: VersionRefusal, pauses: list[float]) -> None:
        known, seen = memory(), list[float]()
        for _ in pauses:
            known = state.record_failure(known, order(), refusal, now_s=0.0)
            setback = known.find_setback(order())
            assert setback is not None
            seen.append(setback.retry_at_s)

        assert seen == pauses

    def test_success_forgets_it(self) -> None:
        known = state.record_failure(memory(), order(), LOAD_FAILED, now_s=0.0)

        assert state.record_success(known, order()).setbacks == ()


class TestTidying:
    def test_models_that_are_no_longer_ordered_are_unloaded_and_removed(self) -> None:
        observed = world(facts(), ready=(1,))
        server = ServerState(
            live=True, ready={**observed.server.ready, "old": (4,)}, digests=observed.server.digests
        )
        observed = ObservedPod(server, {**observed.stored, "old": {4: facts(4)}})

        assert next_step(order(), observed, memory(order())) == CleanUp(("old",), (("old", 4),))

    def test_versions_beyond_what_is_kept_are_removed_oldest_first(self) -> None:
        observed = world(*(facts(version) for version in (1, 2, 3, 4, 5)), ready=(4, 5))

        assert next_step(order(5), observed, memory(order(5))) == CleanUp(
            (), (("ctr", 3), ("ctr", 2), ("ctr", 1))
        )

    def test_after_a_rollback_the_newer_version_stays_on_disk(self) -> None:
        observed = world(facts(1), facts(2), ready=(1,))

        assert next_step(order(1), observed, memory(order(1))) == Wait()

    def test_nothing_is_removed_before_the_order_serves(self) -> None:
        observed = world(*(facts(version) for version in (1, 2, 3, 4, 5)), ready=(4,))

        assert isinstance(next_step(order(5), observed, memory(order(4))), LoadVersions)


class TestBackends:
    @pytest.mark.parametrize(
        ("loaded", "learned"),
        [("onnxruntime", OnnxBackend.NATIVE), ("python", OnnxBackend.HOSTED), ("", OnnxBackend.AUTO)],
    )
    def test_a_loaded_onnx_model_tells(self, loaded: str, learned: OnnxBackend) -> None:
        server = ServerState(live=True, ready={"ctr": (1,)}, backends={"ctr": loaded})

        assert state.learn_backend(AgentMemory(proven=order()), server).backend is learned

    def test_a_python_artefact_tells_nothing_about_onnx(self) -> None:
        server = ServerState(live=True, ready={"ctr": (1,)}, backends={"ctr": "python"})
        proven = order(format=ModelFormat.PYTHON)

        assert state.learn_backend(AgentMemory(proven=proven), server).backend is OnnxBackend.AUTO


class TestReport:
    def report(
        self,
        desired: DesiredState | None,
        observed: ObservedPod,
        known: AgentMemory,
        doing: CurrentStep | None = None,
    ) -> Any:
        return make_report("ctr-0", desired, observed, known, doing or CurrentStep())

    def test_before_an_order(self) -> None:
        report = self.report(None, world(), memory())

        assert (report.phase, report.target, report.serving) == (AgentPhase.STARTING, None, None)

    def test_ready_means_that_the_ordered_version_answers(self) -> None:
        report = self.report(a_desired_state(generation=7), world(facts(), ready=(1,)), memory(order()))

        assert (report.phase, report.generation, report.serving) == (AgentPhase.READY, 7, 1)

    def test_an_order_that_just_came_is_not_ready(self) -> None:
        report = self.report(order(2), world(facts(), ready=(1,)), memory(order()))

        assert (report.phase, report.target, report.serving) == (AgentPhase.LOADING, 2, 1)

    def test_the_same_version_with_another_setting_is_not_ready(self) -> None:
        report = self.report(order(max_batch_size=2), world(facts(), ready=(1,)), memory(order()))

        assert report.phase is AgentPhase.LOADING

    def test_a_server_that_is_gone_serves_nothing(self) -> None:
        report = self.report(order(), world(facts(), live=False), memory(order()))

        assert (report.phase, report.serving, report.loaded) == (AgentPhase.STARTING, None, ())

    def test_a_failure_is_told_in_full_while_the_old_version_serves(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=0.0)

        report = self.report(order(2), world(facts(1), facts(2), ready=(1,)), known)

        assert (report.phase, report.serving, report.target) == (AgentPhase.FAILED, 1, 2)
        assert (report.failure.version, report.failure.message) == (2, "no such operator")

    def test_a_failure_of_an_earlier_order_is_not_told(self) -> None:
        known = state.record_failure(memory(order(1)), order(2), LOAD_FAILED, now_s=0.0)

        assert self.report(order(1), world(facts(1), ready=(1,)), known).failure is None


def test_stored_versions_are_told_apart_by_every_part_of_their_identity() -> None:
    stored: Mapping[str, Any] = {"sha256": facts().digest}

    assert facts().matches_order(order())
    assert facts().matches_order(order(**stored))
    assert not facts().matches_order(order(2))
    assert not facts().matches_order(order(uri="s3://models/ctr"))


def graph_world(on_disk: str = "", result: CompileResult | None = None) -> ObservedPod:
    """A server with version 1, which was loaded as ordered; `on_disk` is the sha256 of its compiled graph."""
    served = world(facts(), ready=(1,))
    return replace(served, graphs={1: on_disk} if on_disk else {}, compile_result=result)


PASSES = a_desired_state(graph_passes=True)
FASTER = CompileResult(graph_sha256="aa")


def test_a_faster_graph_is_switched_to() -> None:
    step = next_step(PASSES, graph_world(result=FASTER), memory(order()))

    assert isinstance(step, SwitchGraph)
    assert (step.sha256, step.load.versions) == ("aa", (1,))


def test_a_loaded_graph_and_one_that_is_not_there_yet_need_no_step() -> None:
    loaded = state.record_graphs(memory(order()), "ctr", (1,), {1: "aa"})

    assert next_step(PASSES, graph_world("aa", FASTER), loaded) == Wait()
    # The result of a kept version may be gone: it goes on with its graph.
    assert next_step(PASSES, graph_world("aa"), loaded) == Wait()
    assert next_step(PASSES, graph_world(), memory(order())) == Wait()
    assert next_step(PASSES, graph_world(result=CompileResult()), memory(order())) == Wait()


def test_after_a_start_of_the_agent_a_graph_on_disk_is_loaded_once_more_to_be_sure() -> None:
    step = next_step(PASSES, graph_world("aa", FASTER), memory(order()))

    assert isinstance(step, SwitchGraph)
    assert step.sha256 == "aa"


@pytest.mark.parametrize("desired", [PASSES, a_desired_state()])
def test_a_refused_graph_and_one_that_is_not_ordered_give_way_to_the_published_one(
    desired: DesiredState,
) -> None:
    known = state.record_graphs(memory(order()), "ctr", (1,), {1: "aa"})
    if desired.graph_passes:
        known = state.refuse_graph(known, "aa", "no such operator")

    step = next_step(desired, graph_world("aa", FASTER), known)

    assert isinstance(step, SwitchGraph)
    assert step.sha256 == ""


@pytest.mark.parametrize(
    ("observed", "phase"),
    [
        (graph_world(), CompilePhase.WAITING),
        (replace(graph_world(), is_compiling=True), CompilePhase.COMPILING),
        (graph_world(result=FASTER), CompilePhase.LOADING),
        (graph_world(result=CompileResult()), CompilePhase.UNCHANGED),
        (graph_world(result=CompileResult(message="no memory")), CompilePhase.FAILED),
        (graph_world("bb", CompileResult(graph_sha256="bb")), CompilePhase.COMPILED),
        (graph_world(result=CompileResult(graph_sha256="cc")), CompilePhase.FAILED),
    ],
)
def test_the_report_has_the_phase_of_the_graph(observed: ObservedPod, phase: CompilePhase) -> None:
    known = state.record_graphs(memory(order()), "ctr", (1,), observed.graphs)
    known = state.refuse_graph(known, "cc", "no such operator")

    report = make_report("ctr-0", PASSES, observed, known, CurrentStep()).compile

    assert report is not None
    assert report.phase is phase
    assert bool(report.message) == (phase is CompilePhase.FAILED)
    assert make_report("ctr-0", order(), observed, known, CurrentStep()).compile is None


def test_a_graph_whose_replacement_was_cut_short_is_put_in_its_place_again() -> None:
    known = memory(order())

    for desired, result, sha256 in (
        (PASSES, FASTER, "aa"),
        (PASSES, None, ""),
        (a_desired_state(), FASTER, ""),
    ):
        step = next_step(desired, graph_world(UNKNOWN_GRAPH, result), known)
        assert isinstance(step, SwitchGraph)
        assert step.sha256 == sha256


def test_after_a_graph_could_not_be_switched_there_is_a_pause() -> None:
    known = replace(memory(order()), next_switch_s=60.0)

    assert next_step(PASSES, graph_world(result=FASTER), known, now_s=59.0) == Wait()
    assert isinstance(next_step(PASSES, graph_world(result=FASTER), known, now_s=60.0), SwitchGraph)


CLICKS = EventStreamReport(source="clicks", caught_up=True, lag_s=0.1)
AWAY = {"problem": StreamProblem.STREAM_UNREACHABLE, "message": "no servers"}


@pytest.mark.parametrize(
    ("reports", "serves"),
    [
        ((), False),
        ((CLICKS,), True),
        ((CLICKS.model_copy(update={"lag_s": 500}),), True),
        ((CLICKS.model_copy(update={"caught_up": False, "lag_s": 500}),), False),
        ((CLICKS.model_copy(update={"caught_up": False, "failing_s": 59, **AWAY}),), False),
        ((CLICKS.model_copy(update={"caught_up": False, "failing_s": 60, **AWAY}),), True),
        ((CLICKS.model_copy(update={"source": "others"}),), False),
    ],
)
@pytest.mark.parametrize("has_served", [True, False])
def test_features_over_events_are_loaded_once_their_streams_are_read(
    reports: tuple[EventStreamReport, ...], serves: bool, has_served: bool
) -> None:
    plan = a_click_plan()
    wanted = order(kind=OwnerKind.FEATURE_COMPUTE, format=ModelFormat.FEATURES, uri="", plan=plan)
    stored = features_facts(plan)
    observed = replace(world(stored), events=reports)

    step = next_step(wanted, observed, memory(wanted if has_served else None))

    assert isinstance(step, LoadVersions if serves else Wait)
    if isinstance(step, LoadVersions):
        assert {"name": "as_of", "data_type": "TYPE_INT64", "dims": [1], "optional": True} in step.config[
            "input"
        ]


@pytest.mark.parametrize(
    "store", [None, RedisStore(address="redis.ads:6379", key_prefix="ads/f", timeout_ms=50)]
)
def test_the_streams_that_could_not_be_read_may_be_asked_for_while_a_change_of_the_store_rolls_out(
    store: RedisStore | None,
) -> None:
    plan = a_click_plan().model_copy(update={"store": store})
    wanted = order(kind=OwnerKind.FEATURE_COMPUTE, format=ModelFormat.FEATURES, uri="", plan=plan)
    stored = features_facts(plan)

    step = next_step(wanted, replace(world(stored), events=(CLICKS,)), memory(None))

    assert isinstance(step, LoadVersions)
    assert step.config["output"][-1] == {
        "name": "tidegate_not_current",
        "data_type": "TYPE_STRING",
        "dims": [1],
    }
