"""Whole rollouts as logs: what a person would see who watched the object, the pods and the orders from start to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.inference import inference_body
from builders.rollout_world import RolloutWorld
from fixtures.golden import CheckGolden

LOGS = Path(__file__).parent / "rollouts"


def a_world(replicas: int = 2, **spec: Any) -> RolloutWorld:
    return RolloutWorld(inference_body(replicas=replicas, **spec))


def serving(replicas: int = 2, **spec: Any) -> RolloutWorld:
    """A world that serves version 1 on every replica; its log begins afterwards."""
    world = a_world(replicas, **spec)
    world.settle()
    assert world.ready.startswith("True")
    world.log.clear()
    return world


def create_and_scale() -> RolloutWorld:
    world = a_world()
    world.settle()
    world.edit("replicas 3", replicas=3)
    world.settle()
    world.edit("replicas 1", replicas=1)
    world.settle()
    return world


def swap_and_roll_back() -> RolloutWorld:
    world = serving(6)
    world.edit("version 2", model={"version": "2"})
    world.settle()
    world.edit("version 1 again", model={"version": "1"})
    world.settle()
    return world


def a_version_that_does_not_load() -> RolloutWorld:
    world = serving(3)
    world.refusals[2] = "failed to load 'ctr' version 2: Protobuf parsing failed"
    world.edit("version 2, which is truncated", model={"version": "2"})
    world.settle()
    world.edit("version 3", model={"version": "3"})
    world.settle()
    return world


def the_first_version_does_not_load() -> RolloutWorld:
    world = a_world()
    world.refusals[1] = "failed to load 'ctr' version 1: Protobuf parsing failed"
    world.settle()
    world.edit("version 2", model={"version": "2"})
    world.settle()
    return world


def new_pods_one_by_one() -> RolloutWorld:
    world = serving(3)
    world.edit("memory 4Gi", resources={"memory": "4Gi"})
    world.settle()
    return world


def new_pods_and_no_room_for_them() -> RolloutWorld:
    world = serving(2)
    world.capacity = 2
    world.happens("the node has room for 2 pods")
    world.edit("memory 4Gi", resources={"memory": "4Gi"})
    world.settle(quiet=30)
    world.capacity = 3
    world.happens("a node with room for 1 more joins")
    world.settle()
    return world


def in_place_on_a_full_node() -> RolloutWorld:
    world = serving(3, rollout={"mode": "InPlace"})
    world.capacity = 3
    world.happens("the node has room for 3 pods")
    world.edit("memory 4Gi", resources={"memory": "4Gi"})
    world.settle()
    return world


def new_pods_that_never_fit_go_back_once() -> RolloutWorld:
    world = serving(3, rollout={"mode": "InPlace", "progressDeadline": "20s"})
    world.capacity = 2
    world.happens("the node has room for 2 pods")
    world.edit("memory 4Gi", resources={"memory": "4Gi"})
    world.run_until(lambda world: "RolledBack" in world.ready)
    world.epoch += 1
    world.happens("the leader is killed, another one takes over")
    world.settle(quiet=60)
    world.edit("replicas 2", replicas=2)
    world.settle(quiet=60)
    world.edit("memory 3Gi", resources={"memory": "3Gi"})
    world.settle()
    return world


def another_leader_in_the_middle_of_a_swap() -> RolloutWorld:
    world = serving(4)
    world.edit("version 2", model={"version": "2"})
    world.run_until(lambda world: any(pod.agent and pod.agent.serving == 2 for pod in world.pods))
    world.epoch += 1
    world.happens("the leader is killed, another one takes over")
    world.settle()
    return world


def a_pod_that_is_lost_in_the_middle_of_a_swap() -> RolloutWorld:
    world = serving(3)
    world.edit("version 2", model={"version": "2"})
    world.run_until(lambda world: any(pod.agent and pod.agent.serving == 2 for pod in world.pods))
    lost = world.pods.pop(0)
    world.happens(f"the node of {lost.name} is gone")
    world.settle()
    return world


SCENARIOS: tuple[Callable[[], RolloutWorld], ...] = (
    create_and_scale,
    swap_and_roll_back,
    a_version_that_does_not_load,
    the_first_version_does_not_load,
    new_pods_one_by_one,
    new_pods_and_no_room_for_them,
    in_place_on_a_full_node,
    new_pods_that_never_fit_go_back_once,
    another_leader_in_the_middle_of_a_swap,
    a_pod_that_is_lost_in_the_middle_of_a_swap,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_rollout_reads_as_agreed(scenario: Callable[[], RolloutWorld], check_golden: CheckGolden) -> None:
    world = scenario()

    assert world.ready.startswith("True"), "\n".join(world.log)
    check_golden(LOGS / f"{scenario.__name__}.log", "\n".join(world.log) + "\n")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_nothing_is_said_or_ordered_twice_in_a_settled_world(scenario: Callable[[], RolloutWorld]) -> None:
    world = scenario()
    before = list(world.log)

    for _ in range(40):
        world.step()

    assert world.log == before
