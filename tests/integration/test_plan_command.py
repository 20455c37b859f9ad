"""`tidegate plan` against real controllers: the allocator's own question, changed, and nothing moved by it."""

from __future__ import annotations

from builders.waiting import wait_until
from fixtures.allocated import SLICES, Allocated, looks_again
from fixtures.command_line import CommandLine
from fixtures.processes import Running


def test_what_if_answers_as_the_allocator_would_and_moves_nothing(
    allocated: Allocated, controllers: Running, command_line: CommandLine
) -> None:
    allocated.mode("Auto")
    allocated.model("batch", 0, 2, tier="offline")
    allocated.settled(batch=2)
    looks_again(controllers, allocated.pool)
    address, batch = f"127.0.0.1:{controllers.probe_port}", f"{allocated.pools.namespace}/batch"
    decided = len(allocated.decisions())

    def plan(*arguments: str) -> list[tuple[str, int, int]]:
        said = command_line("plan", allocated.pool, "--address", address, *arguments)
        return [(each["inference"], each["from"], each["to"]) for each in said["decision"]["moves"]]

    assert plan() == []
    more = ("--max", f"{batch}={SLICES}", "--demand", f"{batch}={SLICES}")
    assert plan(*more) == [(batch, 2, SLICES)]
    assert plan(*more, "--slices", "3") == [(batch, 2, 3)]
    looks_again(controllers, allocated.pool)
    assert len(allocated.decisions()) == decided
    said = command_line.refused("plan", "no-such-pool", "--address", address)
    assert "has not looked at a ComputePool no-such-pool" in said
    # What it says is what the allocator does when it becomes true.
    allocated.model("batch", 0, SLICES, tier="offline")
    wait_until(lambda: len(allocated.decisions()) > decided, what="it is decided as was said")
    [move] = allocated.decisions()[0]["spec"]["moves"]
    assert (move["inference"], move["from"], move["to"]) == (batch, 2, SLICES)
