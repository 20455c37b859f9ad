"""Processes of models that end: what the agent makes of the words on the pod's socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builders.metrics_page import metric
from builders.runner_agent import RunnerAgent
from builders.waiting import wait_until
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.runners import RECENTLY_S, RECONNECT_S, REMEMBERED_S, REST_S, RunnerRegistry
from tidegate_dataplane.contract import RunnerEnd
from tidegate_dataplane.runner_interface import JoinLimit
from tidegate_dataplane.sampling.container import count_memory_kills, read_server_identity
from tidegate_dataplane.sampling.frames import GoodbyeFrame, HelloFrame
from tidegate_dataplane.sampling.sampler import Sampler


class Pod:
    """Runners over a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = AgentMetrics()
        self.runners = RunnerRegistry(self.metrics, lambda: self.now)

    def ended(self, why: str) -> float:
        return metric(self.metrics.render_text().decode(), "tidegate_agent_runner_ends_total", reason=why)


def hello(version: int = 1, *, server: str = "1-100", kills: int = 0) -> HelloFrame:
    return HelloFrame("ctr", version, server, kills)


def test_a_process_that_ends_is_named_and_rests_its_model() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    assert not pod.runners.resting_models

    pod.runners.record_disconnect("a")
    assert pod.runners.resting_models == {"ctr"}
    assert pod.runners.report() == RunnerEnd(version=1, killed_for_memory=False)
    assert pod.ended("other") == 0  # it may be the server that ends

    pod.runners.add_runner("b", hello())
    assert pod.runners.report() == RunnerEnd(version=1, killed_for_memory=False)
    assert (pod.ended("other"), pod.ended("memory")) == (1, 0)
    pod.now = REST_S
    assert not pod.runners.resting_models
    pod.now = RECENTLY_S
    assert pod.runners.report() is None


def test_the_kernels_count_says_that_it_was_memory() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello(kills=2))
    pod.runners.record_disconnect("a")
    pod.runners.add_runner("b", hello(kills=3))

    assert pod.runners.report() == RunnerEnd(version=1, killed_for_memory=True)
    assert pod.ended("memory") == 1


def test_who_is_unloaded_or_whose_server_was_restarted_has_not_ended_by_itself() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    pod.runners.remove_runner("a")
    pod.runners.record_disconnect("a")
    assert not pod.runners.resting_models

    pod.runners.add_runner("b", hello())
    pod.runners.record_disconnect("b")
    pod.runners.add_runner("c", hello(server="1-900", kills=5))
    assert pod.runners.report() is None
    assert not pod.runners.resting_models
    assert pod.ended("other") == pod.ended("memory") == 0


def test_a_broken_model_is_to_be_reloaded_under_another_mark_each_time() -> None:
    pod = Pod()
    woken: list[int] = []
    pod.runners.subscribe(lambda: woken.append(1))
    pod.runners.add_runner("a", hello())
    assert (pod.runners.broken_models, pod.runners.reload_marks) == (frozenset(), {})

    pod.runners.record_disconnect("a")
    first = pod.runners.reload_marks["ctr"]
    assert pod.runners.broken_models == {"ctr"}
    pod.runners.reset_model("ctr")
    assert pod.runners.broken_models == frozenset()
    assert pod.runners.reload_marks["ctr"] == first

    pod.runners.add_runner("b", hello())
    pod.runners.record_disconnect("b")
    assert pod.runners.reload_marks["ctr"] != first
    assert len(woken) == 2


def test_a_runner_that_connects_after_its_load_has_ended_still_counts_the_one_before() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    pod.runners.record_disconnect("a")
    pod.runners.reset_model("ctr")
    pod.now += RECONNECT_S
    pod.runners.add_runner("b", hello(kills=1))

    assert pod.runners.report() == RunnerEnd(version=1, killed_for_memory=True)
    assert pod.ended("memory") == 1


def test_an_end_of_long_ago_is_no_matter_of_a_version_that_is_loaded_again() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    pod.runners.record_disconnect("a")
    pod.runners.reset_model("ctr")  # without version 1
    pod.now = 86_400.0
    pod.runners.add_runner("b", hello(kills=9))

    assert pod.runners.report() is None
    assert pod.ended("memory") == 0


def test_a_pod_whose_process_keeps_ending_rests_longer_each_time() -> None:
    pod = Pod()
    rests: list[float] = []
    for number in range(6):
        pod.runners.add_runner(number, hello())
        pod.runners.record_disconnect(number)
        ended = pod.now
        while pod.runners.resting_models:
            pod.now += 1.0
        rests.append(pod.now - ended)

    assert rests == [4, 8, 16, 32, 32, 32]
    pod.now += REMEMBERED_S
    pod.runners.add_runner("late", hello())
    pod.runners.record_disconnect("late")
    pod.now += REST_S
    assert not pod.runners.resting_models


def test_a_runner_that_ended_while_no_agent_listened_is_missed() -> None:
    pod = Pod()
    pod.runners.check_versions("ctr", (1,))
    pod.now += RECONNECT_S
    pod.runners.check_versions("ctr", (1,))
    assert pod.runners.broken_models == frozenset()  # nobody listens yet

    pod.runners.start_listening()
    pod.runners.check_versions("ctr", (1,))
    assert pod.runners.broken_models == frozenset()
    pod.now += RECONNECT_S
    pod.runners.check_versions("ctr", (1,))
    assert pod.runners.broken_models == {"ctr"}


def test_one_of_several_processes_that_ended_while_no_agent_listened_is_missed() -> None:
    pod = Pod()
    pod.runners.start_listening()
    for peer in ("a", "b", "c"):
        pod.runners.add_runner(peer, replace(hello(), instances=4))
    pod.runners.check_versions("ctr", (1,))
    pod.now += RECONNECT_S
    pod.runners.check_versions("ctr", (1,))
    assert pod.runners.broken_models == {"ctr"}


def test_several_processes_that_are_all_there_are_not_missed() -> None:
    pod = Pod()
    pod.runners.start_listening()
    for peer in ("a", "b", "c", "d"):
        pod.runners.check_versions("ctr", (1,))
        pod.now += RECONNECT_S - 1
        pod.runners.add_runner(peer, replace(hello(), instances=4))
        pod.now -= RECONNECT_S - 1
    pod.now += 2 * RECONNECT_S
    pod.runners.check_versions("ctr", (1,))
    assert pod.runners.broken_models == frozenset()


def test_one_that_never_comes_costs_one_load() -> None:
    pod = Pod()
    pod.runners.start_listening()
    marks: list[str] = []
    for _ in range(4):
        pod.runners.add_runner("a", replace(hello(), instances=2))
        pod.runners.check_versions("ctr", (1,))
        pod.now += RECONNECT_S
        pod.runners.check_versions("ctr", (1,))
        marks.append(pod.runners.reload_marks["ctr"])
        pod.runners.reset_model("ctr")
    assert len(set(marks)) == 1


def test_a_runner_that_comes_back_in_time_is_not_missed_and_one_that_never_does_costs_one_load() -> None:
    pod = Pod()
    pod.runners.start_listening()
    for version in (1, 2):
        pod.runners.check_versions("ctr", (1, 2))
        pod.runners.add_runner(version, hello(version))
    pod.now += 2 * RECONNECT_S
    pod.runners.check_versions("ctr", (1, 2))
    assert pod.runners.broken_models == frozenset()

    for _ in range(5):
        pod.runners.check_versions("silent", (1,))
        pod.now += RECONNECT_S
        pod.runners.check_versions("silent", (1,))
        marks = pod.runners.reload_marks["silent"]
        pod.runners.reset_model("silent")
    assert pod.runners.reload_marks["silent"] == marks
    assert pod.runners.broken_models == frozenset()


def test_a_peer_that_never_said_who_it_is_changes_nothing() -> None:
    pod = Pod()
    pod.runners.record_disconnect("a")
    assert not pod.runners.resting_models


def test_a_runner_says_first_who_it_is_and_at_last_that_it_goes(tmp_path: Path) -> None:
    with RunnerAgent(tmp_path, share=0.0) as agent:
        with agent.sampler():
            wait_until(lambda: bool(agent.words), what="the runner has said who it is")
        wait_until(lambda: len(agent.words) == 2, what="the runner has said that it goes")

    first, last = agent.words
    assert first == HelloFrame("ctr", 3, read_server_identity(), count_memory_kills())
    assert last == GoodbyeFrame()


def test_kills_are_counted_in_either_version_of_control_groups(tmp_path: Path) -> None:
    assert count_memory_kills(tmp_path) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert count_memory_kills(tmp_path) == 3
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n")
    assert count_memory_kills(tmp_path) == 2


def test_a_server_is_the_same_while_its_process_is(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    stat.write_text("7 (triton server) S " + " ".join(str(number) for number in range(4, 53)))
    assert read_server_identity(7, tmp_path) == "7-22"
    stat.unlink()
    assert read_server_identity(7, tmp_path) == "7"


def test_the_strictest_limit_of_a_versions_processes_is_reported_and_a_later_hello_changes_it() -> None:
    pod = Pod()
    assert pod.runners.find_join_limit("ctr", 1) is None
    pod.runners.add_runner("a", replace(hello(), join_limit="AnyShape"))
    pod.runners.add_runner("b", replace(hello(), join_limit="SameShape"))
    pod.runners.add_runner("c", replace(hello(2), join_limit="Alone"))
    assert pod.runners.find_join_limit("ctr", 1) is JoinLimit.SAME_SHAPE
    pod.runners.add_runner("a", replace(hello(), join_limit="Alone"))
    assert pod.runners.find_join_limit("ctr", 1) is JoinLimit.ALONE
    pod.runners.remove_runner("a")
    assert pod.runners.find_join_limit("ctr", 1) is JoinLimit.SAME_SHAPE


def test_a_runner_that_checks_nothing_has_no_limit() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    assert pod.runners.find_join_limit("ctr", 1) is None


def test_a_process_that_reports_a_change_of_itself_replaces_no_ended_one() -> None:
    pod = Pod()
    pod.runners.add_runner("a", hello())
    pod.runners.add_runner("b", hello())
    pod.runners.record_disconnect("b")
    pod.runners.add_runner("a", replace(hello(), join_limit="Alone"))
    assert pod.ended("other") == 0
    pod.runners.add_runner("c", hello())
    assert pod.ended("other") == 1


def test_a_runner_reports_a_change_of_its_limit_while_it_is_connected_and_the_last_one_to_the_next_agent(
    tmp_path: Path,
) -> None:
    with RunnerAgent(tmp_path, share=0.0) as agent:
        sampler = Sampler("ctr", "3", path=agent.path)
        sampler.report_join_limit("AnyShape")
        sampler.start()
        wait_until(lambda: bool(agent.words), what="the runner has said its limit")
        sampler.report_join_limit("SameShape")
        wait_until(lambda: len(agent.words) == 2, what="the runner has said its other limit")
        sampler.report_join_limit("SameShape")
    with RunnerAgent(tmp_path, share=0.0) as next_agent:
        wait_until(lambda: bool(next_agent.words), what="the next agent has heard it as well")
        sampler.finish_sending()

    limits = [word.join_limit for word in (*agent.words, next_agent.words[0]) if isinstance(word, HelloFrame)]
    assert limits == ["AnyShape", "SameShape", "SameShape"]
