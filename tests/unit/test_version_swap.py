"""A version change, replayed in memory with agents that fetch, load and fail, until nothing moves any more."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.swap_failures import (
    MAX_RETRY_DELAY,
    PROGRESS_DEADLINE,
    RETRY_DELAY,
    ObservedReplica,
    RecordedFailure,
    VersionProgress,
)
from tidegate.planning.inference.version_swap import SwapHistory, SwapPlan, plan_swap
from tidegate.planning.pods import PodView
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    DesiredState,
    FailureReason,
    ModelFormat,
    OwnerKind,
    VersionFailure,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def an_order(version: int, *, generation: int = 1, sha256: str | None = None) -> DesiredState:
    return DesiredState(
        owner="ads/ctr",
        kind=OwnerKind.INFERENCE,
        epoch=1,
        generation=generation,
        model="ctr",
        version=version,
        uri="file:///models/ctr",
        sha256=sha256,
        format=ModelFormat.ONNX,
    )


@dataclass
class Pod:
    """A pod whose agent needs one step to load, and refuses the versions in `broken`."""

    name: str
    broken: dict[int, FailureReason] = field(default_factory=dict)
    order: DesiredState | None = None
    serving: int | None = None
    failure: VersionFailure | None = None
    silent: bool = False
    hangs: set[int] = field(default_factory=set[int])
    fetching: bool = False
    kept: tuple[int, ...] = ()
    killed: datetime | None = None
    outgrown: bool = False
    unready_since: datetime | None = None

    def start(self, order: DesiredState) -> None:
        self.order, self.failure = order, None

    def step(self) -> None:
        if self.order is None or self.serving == self.order.version or self.failure is not None:
            return
        if self.order.version in self.hangs:
            return
        if (reason := self.broken.get(self.order.version)) is not None:
            self.failure = VersionFailure(version=self.order.version, reason=reason, message="no")
        else:
            self.serving = self.order.version

    def replica(self) -> ObservedReplica:
        view = PodView(
            ObjectKey("ads", self.name),
            self.name,
            "s",
            "10.0.0.1",
            ready=self.unready_since is None,
            unready_since=self.unready_since,
            terminating=False,
            oom_killed_at=self.killed,
            memory_limit="512Mi",
        )
        if self.silent or self.order is None:
            return ObservedReplica(view, None, memory_limit_outdated=self.outgrown)
        ready = self.serving == self.order.version
        report = AgentReport(
            pod=self.name,
            epoch=1,
            generation=self.order.generation,
            phase=AgentPhase.READY
            if ready
            else AgentPhase.FAILED
            if self.failure
            else AgentPhase.FETCHING
            if self.fetching
            else AgentPhase.LOADING,
            target=self.order.version,
            serving=self.serving,
            loaded=(*self.kept, self.serving) if self.serving else (),
            failure=self.failure,
        )
        return ObservedReplica(view, report, memory_limit_outdated=self.outgrown)


@dataclass
class Fleet:
    """Pods, the ConfigMap they start from, and what the status remembers; `log` reads like a story."""

    pods: list[Pod]
    committed: DesiredState | None = None
    failure: RecordedFailure | None = None
    now: datetime = START
    progress: VersionProgress | None = None
    serving: int | None = None
    tried_before: bool = False
    log: list[str] = field(default_factory=list)

    def reconcile(self, target: DesiredState) -> SwapPlan:
        memory = SwapHistory(self.committed, self.failure, self.progress, self.serving, self.tried_before)
        swap = plan_swap(target, memory, [pod.replica() for pod in self.pods], self.now)
        if self.committed is None or swap.committed.version != self.committed.version:
            self.log.append(f"commit {swap.committed.version}")
        self.committed, self.failure, self.progress = swap.committed, swap.failure, swap.progress
        by_name = {pod.name: pod for pod in self.pods}
        for order in swap.orders:
            pod = by_name[order.pod.key.name]
            self.log.append(
                f"{pod.name}: {pod.order.version if pod.order else '-'} -> {order.desired_state.version}"
            )
            pod.start(order.desired_state)
        return swap

    def run(self, target: DesiredState, *, rounds: int = 60) -> SwapPlan:
        """Reconciles and lets agents work until a round changes nothing."""
        swap = self.reconcile(target)
        for _ in range(rounds):
            for pod in self.pods:
                if pod.order is None:
                    pod.start(swap.committed)
                pod.step()
            before = len(self.log)
            swap = self.reconcile(target)
            if len(self.log) == before and (swap.done or swap.failure):
                return swap
        pytest.fail(f"did not settle: {self.log}")


def a_fleet(count: int, **kwargs: object) -> Fleet:
    fleet = Fleet([Pod(f"p{index}") for index in range(count)], **kwargs)  # type: ignore[arg-type]
    assert fleet.run(an_order(1)).done
    fleet.log.clear()
    return fleet


def test_first_rollout_commits_at_once_and_orders_nothing_new() -> None:
    fleet = Fleet([Pod("p0"), Pod("p1")])

    assert fleet.run(an_order(1)).done
    assert fleet.log == ["commit 1"]


def test_at_most_a_quarter_works_at_the_same_time() -> None:
    fleet = a_fleet(8)
    target = an_order(2, generation=2)
    busiest = 0
    for _ in range(20):
        fleet.reconcile(target)
        busy = sum(pod.order == target and pod.serving != 2 for pod in fleet.pods)
        busiest = max(busiest, busy)
        for pod in fleet.pods:
            pod.step()
    assert busiest == 2
    assert fleet.reconcile(target).done


def test_replicas_that_took_a_version_go_back_when_another_one_cannot() -> None:
    fleet = a_fleet(4)
    fleet.pods[2].broken[2] = FailureReason.LOAD_FAILED

    swap = fleet.run(an_order(2, generation=2))

    assert swap.failure is not None
    assert [pod.serving for pod in fleet.pods] == [1] * 4


def test_failed_version_is_not_tried_again_until_the_spec_changes() -> None:
    fleet = a_fleet(2)
    fleet.pods[0].broken[2] = FailureReason.LOAD_FAILED
    fleet.run(an_order(2, generation=2))
    fleet.log.clear()
    fleet.now += timedelta(hours=1)

    assert not fleet.run(an_order(2, generation=2)).done
    assert fleet.log == []

    fleet.pods[0].broken.clear()
    fleet.failure = None  # the status's failure was about the generation before
    assert fleet.run(an_order(2, generation=3)).done
    assert fleet.log[-1] == "commit 2"


def test_missing_artefact_is_tried_again_after_a_while_without_a_change() -> None:
    fleet = a_fleet(2)
    fleet.pods[0].broken[2] = FailureReason.ARTEFACT_NOT_FOUND
    swap = fleet.run(an_order(2, generation=2))
    assert swap.retry_after is not None
    assert timedelta(0) < swap.retry_after <= RETRY_DELAY
    fleet.log.clear()

    fleet.pods[0].broken.clear()
    assert not fleet.run(an_order(2, generation=2)).done
    assert fleet.log == []

    # While it is tried again the failure stays in sight, so that conditions do not come and go.
    fleet.now += RETRY_DELAY
    retry = fleet.reconcile(an_order(2, generation=2))
    assert retry.retrying
    assert retry.failure is not None
    assert fleet.run(an_order(2, generation=2)).done
    assert fleet.failure is None


def test_bad_version_does_not_take_over_when_every_pod_of_the_good_one_is_replaced() -> None:
    fleet = a_fleet(2)
    broken = {2: FailureReason.LOAD_FAILED}
    for pod in fleet.pods:
        pod.broken = broken
    target = an_order(2, generation=2)
    fleet.run(target)

    fleet.pods = []
    fleet.reconcile(target)
    fleet.pods = [Pod("p8", broken), Pod("p9", broken)]
    fleet.run(target)

    assert fleet.committed is not None
    assert fleet.committed.version == 1
    assert [pod.serving for pod in fleet.pods] == [1, 1]


def test_good_version_that_cannot_be_fetched_for_a_while_is_not_given_up_for_a_new_one() -> None:
    fleet = a_fleet(1)
    fleet.pods = [Pod("p9", {1: FailureReason.FETCH_FAILED, 2: FailureReason.LOAD_FAILED})]
    fleet.pods[0].start(an_order(1))
    fleet.pods[0].step()

    fleet.run(an_order(2, generation=2))

    assert fleet.committed is not None
    assert fleet.committed.version == 1


def test_pod_that_starts_in_the_middle_of_a_swap_starts_with_the_proven_version() -> None:
    fleet = a_fleet(4)
    target = an_order(2, generation=2)
    fleet.reconcile(target)
    fleet.pods[0].step()
    fleet.reconcile(target)

    assert fleet.committed is not None
    assert fleet.committed.version == 1
    newcomer = Pod("p9")
    newcomer.start(fleet.committed)
    fleet.pods.append(newcomer)
    assert fleet.run(target).done
    assert newcomer.serving == 2


def test_silent_agent_counts_as_working_so_that_no_other_is_risked_meanwhile() -> None:
    fleet = a_fleet(2)
    fleet.pods[1].silent = True
    target = an_order(2, generation=2)
    for _ in range(5):
        fleet.reconcile(target)
        fleet.pods[0].step()

    assert fleet.log == []
    assert not fleet.reconcile(target).done

    fleet.pods[1].silent = False
    assert fleet.run(target).done


def test_agent_that_stays_silent_ends_the_change_after_the_deadline_and_is_named() -> None:
    fleet = a_fleet(4)
    target = an_order(2, generation=2)
    fleet.reconcile(target)
    fleet.pods[0].step()
    fleet.reconcile(target)
    fleet.pods[1].silent = True
    fleet.reconcile(target)
    fleet.now += PROGRESS_DEADLINE - timedelta(seconds=1)
    assert fleet.reconcile(target).failure is None

    fleet.now += timedelta(seconds=1)
    failure = fleet.reconcile(target).failure

    assert failure is not None
    assert failure.failure.reason is FailureReason.LOAD_TIMED_OUT
    assert "agent of pod p1 has not answered for 11 minutes" in failure.failure.message
    fleet.pods[0].step()
    assert fleet.pods[0].serving == 1


def test_a_replica_that_was_gone_before_the_change_does_not_hold_it_and_follows_when_it_is_back() -> None:
    fleet = a_fleet(3)
    gone, target = fleet.pods[1], an_order(2, generation=2)
    gone.silent, gone.unready_since = True, fleet.now - timedelta(minutes=1)

    for _ in range(8):
        swap = fleet.reconcile(target)
        for pod in fleet.pods:
            pod.step()

    assert [pod.serving for pod in fleet.pods] == [2, 1, 2]
    assert (swap.committed.version, swap.done, swap.failure) == (2, False, None)
    gone.silent, gone.unready_since = False, None
    assert fleet.run(target).done
    assert [pod.serving for pod in fleet.pods] == [2, 2, 2]


@pytest.mark.parametrize("before", [-5, 0, 59])
def test_a_replica_that_goes_in_the_change_or_just_before_holds_it(before: int) -> None:
    """The version may be the reason: the next replica would go as well."""
    fleet = a_fleet(3)
    target = an_order(2, generation=2)
    fleet.reconcile(target)
    fleet.pods[0].silent, fleet.pods[0].unready_since = True, START - timedelta(seconds=before)
    for _ in range(5):
        fleet.reconcile(target)
        fleet.now += timedelta(minutes=2)
    assert [pod.serving for pod in fleet.pods] == [1, 1, 1]
    fleet.now += PROGRESS_DEADLINE
    assert fleet.reconcile(target).failure is not None


def test_a_version_that_was_tried_before_waits_for_the_replica_that_it_may_have_ended() -> None:
    """Each retry, and each edit of the spec, would take one more."""
    fleet = a_fleet(4)
    fleet.pods[0].silent, fleet.pods[0].unready_since = True, fleet.now - timedelta(minutes=5)
    fleet.tried_before = True
    for _ in range(5):
        fleet.reconcile(an_order(2, generation=2))
        for pod in fleet.pods:
            pod.step()

    assert fleet.log == []


def test_a_change_with_no_replica_left_waits_for_one() -> None:
    fleet = a_fleet(2)
    for pod in fleet.pods:
        pod.silent, pod.unready_since = True, fleet.now - timedelta(minutes=5)

    swap = fleet.reconcile(an_order(2, generation=2))

    assert (swap.committed.version, swap.done, swap.orders) == (1, False, ())


def test_a_change_that_an_earlier_release_began_waits_for_silent_agents() -> None:
    fleet = a_fleet(3)
    fleet.pods[1].silent, fleet.pods[1].unready_since = True, fleet.now - timedelta(minutes=5)
    fleet.progress = VersionProgress(2, 0, 0, fleet.now)
    target = an_order(2, generation=2)
    for _ in range(5):
        fleet.reconcile(target)

    assert fleet.log == []


def test_replica_that_hangs_while_loading_does_not_hold_the_change_for_ever() -> None:
    fleet = a_fleet(4)
    fleet.pods[2].hangs.add(2)
    target = an_order(2, generation=2)
    for _ in range(8):
        fleet.reconcile(target)
        for pod in fleet.pods:
            pod.step()
    assert [pod.serving for pod in fleet.pods] == [2, 2, 1, 1]

    fleet.now += PROGRESS_DEADLINE
    failure = fleet.reconcile(target).failure
    for pod in fleet.pods:
        pod.step()

    assert failure is not None
    assert "pod p2 has not finished loading it in 11 minutes" in failure.failure.message
    assert [pod.serving for pod in fleet.pods] == [1] * 4


def test_long_download_is_no_deadlock() -> None:
    fleet = a_fleet(2)
    target = an_order(2, generation=2)
    fleet.reconcile(target)
    fleet.pods[0].fetching = True
    for _ in range(3):
        assert fleet.reconcile(target).failure is None
        fleet.now += PROGRESS_DEADLINE
    fleet.pods[0].fetching = False

    assert fleet.run(target).done


def test_failure_that_may_pass_is_tried_ever_more_seldom_and_only_the_status_knows() -> None:
    fleet = a_fleet(2)
    fleet.pods[0].broken[2] = FailureReason.ARTEFACT_NOT_FOUND
    target, pauses = an_order(2, generation=2), list[timedelta]()
    for attempt in range(1, 9):
        swap = fleet.run(target)
        assert swap.failure is not None
        assert swap.retry_after is not None
        assert swap.failure.attempts == attempt
        pauses.append(swap.retry_after)
        fleet.now += swap.retry_after
        fleet.reconcile(target)

    assert pauses[:3] == [RETRY_DELAY, 2 * RETRY_DELAY, 4 * RETRY_DELAY]
    assert pauses[-1] == MAX_RETRY_DELAY


def test_lost_config_map_does_not_make_an_unproven_target_the_committed_one() -> None:
    fleet = a_fleet(4)
    fleet.pods[0].broken[2] = FailureReason.LOAD_FAILED
    target = an_order(2, generation=2, sha256="0" * 64)
    fleet.committed = None

    swap = fleet.run(target)

    assert swap.failure is not None
    assert (swap.committed.version, swap.committed.sha256) == (1, None)
    assert [pod.serving for pod in fleet.pods] == [1] * 4


def test_lost_config_map_of_silent_agents_is_written_from_what_the_status_knew() -> None:
    fleet = a_fleet(2)
    for pod in fleet.pods:
        pod.silent = True
    fleet.committed, fleet.serving = None, 1

    assert fleet.reconcile(an_order(2, generation=2)).committed.version == 1


def test_lost_config_map_of_a_settled_fleet_is_written_as_it_was() -> None:
    fleet = a_fleet(2)
    before, fleet.committed = fleet.committed, None

    assert fleet.reconcile(an_order(1)).committed == before


def test_kill_for_memory_ends_the_change_before_a_second_one() -> None:
    fleet = a_fleet(2)
    fleet.pods[0].killed = START - timedelta(hours=1)
    target = an_order(2, generation=2)
    assert fleet.reconcile(target).failure is None
    fleet.pods[0].killed = fleet.now + timedelta(seconds=2)

    swap = fleet.reconcile(target)

    assert swap.failure is not None
    assert swap.failure.failure.reason is FailureReason.OUT_OF_MEMORY
    assert "memory limit of 512Mi" in swap.failure.failure.message
    assert swap.retry_after is None
    assert fleet.log == ["p0: 1 -> 2", "p0: 2 -> 1", "p1: 1 -> 1"]


def test_raised_memory_limit_recovers_although_the_last_small_pod_fails_once_more() -> None:
    fleet = a_fleet(1)
    fleet.pods[0].broken[2] = FailureReason.OUT_OF_MEMORY
    assert fleet.run(an_order(2, generation=2)).failure is not None

    # The user raises the limit: the small pod is still there, and is told of the new generation.
    fleet.failure, fleet.pods[0].outgrown = None, True
    larger = an_order(2, generation=3)
    assert fleet.reconcile(larger).failure is None
    fleet.pods[0].step()
    assert fleet.reconcile(larger).failure is None

    fleet.pods = [Pod("p9")]
    assert fleet.run(larger).done


def test_server_that_ended_for_memory_says_so_for_a_first_version_too() -> None:
    fleet = Fleet([Pod("p0", broken={1: FailureReason.SERVER_ENDED}, killed=START)])

    swap = fleet.run(an_order(1))

    assert swap.failure is not None
    assert swap.failure.failure.reason is FailureReason.OUT_OF_MEMORY


def test_new_checksum_for_the_same_version_is_checked_by_every_replica() -> None:
    fleet = a_fleet(2)
    swap = fleet.reconcile(an_order(1, generation=2, sha256="0" * 64))

    assert not swap.done
    assert [order.desired_state.sha256 for order in swap.orders] == ["0" * 64]
