"""A part of the kill sweep that CI can afford: bench/kill_sweep.py strikes at every write of every scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders.scenario import require_scenario
from faults import scenarios
from faults.injections import EveryMove, Fault, NoFault, WatchDeed, WatchFault, When, WriteDeed, WriteFault
from faults.scenarios import Scenario
from faults.sweep import Patience, Sweep

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

STATUS_FIRST = """
from tidegate_controllers.applier import Applier
children, status, waiting = Applier.apply_children, Applier.write_status, {}
async def later(self, owner, plan):
    waiting[owner.key] = owner, plan
async def first(self, kind, body, plan):
    await status(self, kind, body, plan)
    if (body.get("status") or {}).get("observedGeneration") != body["metadata"]["generation"]:
        for owner, planned in tuple(waiting.values()):
            await children(self, owner, planned)
Applier.apply_children, Applier.write_status = later, first
"""
"""An operator that says first and does afterwards, and believes its own words after a restart."""


BLIND_TO_DRAINS = """
from tidegate_controllers.placements import Placements
find = Placements._find_assigned_pods
Placements._find_assigned_pods = lambda self, key: tuple(pod for pod in find(self, key) if pod.ready)
"""
"""An operator that counts a slice as free as soon as the pod on it is told to end."""


async def struck(sweep: Sweep, scenario: Scenario, faults: Sequence[Fault]) -> None:
    """Every fault happens, and the end is that of a run without one."""
    reference = await sweep.run(scenario, NoFault())
    assert reference.problems == ()
    for fault in faults:
        outcome = await sweep.run(scenario, fault, reference.world)
        assert outcome.problems == (), f"{scenario.name}, {fault}: {outcome.problems}"
        require_scenario(outcome.struck, f"{fault} happens; there was {outcome.steps}")


@pytest.mark.no_rerun("a change is lost")
async def test_a_version_swap_ends_alike_wherever_the_operator_is_killed(sweep: Sweep) -> None:
    await struck(
        sweep,
        scenarios.SWAP,
        [
            WriteFault(1, When.AFTER),
            WriteFault(2, When.AFTER),
            # Its successor begins with lists from before the swap: no replica must go back to version 1 for it.
            WriteFault(3, When.AFTER, stale_s=1.0),
        ],
    )


@pytest.mark.slow("a sweep of its own; the swap, the slices and one planted defect are always run")
async def test_a_pod_rollout_ends_alike_wherever_the_operator_is_killed(sweep: Sweep) -> None:
    await struck(sweep, scenarios.ROLLOUT, [WriteFault(1, When.AFTER), WriteFault(3, When.BEFORE)])


@pytest.mark.slow("a sweep of its own; the swap, the slices and one planted defect are always run")
async def test_an_answer_that_is_lost_is_no_second_object(sweep: Sweep) -> None:
    await struck(
        sweep,
        scenarios.CREATE,
        [
            WriteFault(3, When.AFTER, WriteDeed.BREAK),
            WatchFault(WatchDeed.CUT, "pods", at=2),
        ],
    )


@pytest.mark.slow("a sweep of its own; the swap, the slices and one planted defect are always run")
async def test_a_deleted_inference_stays_deleted_when_the_watch_missed_it(sweep: Sweep) -> None:
    """kopf lists again after 410 Gone, and tells nobody of what is not in the list."""
    await struck(sweep, scenarios.DELETE, [WatchFault(WatchDeed.BLIND, "inferences")])


@pytest.mark.slow("a sweep of its own; the swap, the slices and one planted defect are always run")
async def test_an_inference_that_was_made_anew_meanwhile_is_served(sweep: Sweep) -> None:
    await struck(sweep, scenarios.RECREATE, [WatchFault(WatchDeed.GONE, "deployments")])


@pytest.mark.no_rerun("a slice is held twice")
async def test_slices_change_hands_once_although_the_operator_is_killed_after_every_write(
    sweep: Sweep,
) -> None:
    """Real-time work takes near-line slices; each operator makes one step of it, and dies."""
    reference = await sweep.run(scenarios.REALLOCATION, NoFault())
    assert reference.problems == ()
    before = sweep.restarts

    outcome = await sweep.run(scenarios.REALLOCATION, EveryMove(), reference.world)

    assert outcome.problems == ()
    # The decision, what both are to have, both Deployments, and the outcome.
    require_scenario(sweep.restarts - before >= 6, "the operator is killed six times")


async def test_an_operator_that_counts_no_pods_on_their_way_out_is_found_out(sweep: Sweep) -> None:
    """The negative: this one gives slices away that somebody is still on."""
    async with sweep.broken(BLIND_TO_DRAINS, Patience(settles_s=20.0)):
        pool = replace(scenarios.REALLOCATION.pool, drain_s=4.0)
        outcome = await sweep.run(replace(scenarios.REALLOCATION, pool=pool), NoFault())
    assert any(problem.startswith("I1: ") for problem in outcome.problems), outcome.problems


@pytest.mark.slow("a sweep of its own; the swap, the slices and one planted defect are always run")
async def test_an_operator_that_says_before_it_does_is_found_out(sweep: Sweep) -> None:
    """The negative: this one works as long as nothing happens to it, and a kill between two writes shows it up."""
    async with sweep.broken(STATUS_FIRST, Patience()):
        reference = await sweep.run(scenarios.CREATE, NoFault())
        assert reference.problems == ()
        sweep.patience = Patience(settles_s=12.0)
        outcome = await sweep.run(scenarios.CREATE, WriteFault(1, When.AFTER), reference.world)

    assert outcome.struck
    assert any("not settled" in problem for problem in outcome.problems), outcome.problems
