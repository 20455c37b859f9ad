"""`tidegate top -w` on a terminal: what its keys change, and that they reach it."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import termios
from collections.abc import Iterator

import pytest
from rich.console import Console

from builders.waiting import LONGEST_S, eventually
from tidegate.api.inference import Tier
from tidegate.cli.live_screen import LiveView, TableScreen, count_page_rows, split_keys
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.reports.state import ObjectState
from tidegate.reports.top import ModelTop, TopInferences

HEIGHT = 6
PAGE = count_page_rows(HEIGHT)


def a_model(name: str, rate: float, *, p99_ms: float = 10.0, tier: Tier = Tier.REALTIME) -> ModelTop:
    return ModelTop(
        inference=f"ads/{name}",
        tier=tier,
        pool="cpu-a",
        state=ObjectState.READY,
        ready=1,
        decided=1,
        decided_pods=1,
        slices=1,
        requests_per_second=rate,
        served_per_second=rate,
        latency_p99_ms=p99_ms,
        p99_unanswered=False,
        slo_ms=30,
        demand_per_second=rate,
        value_per_second=rate,
        value_per_slice=rate,
    )


def a_report(*models: ModelTop) -> TopInferences:
    return TopInferences(namespace="ads", window_seconds=5, gateways_silent=(), items=models, notes=("late",))


FIVE = a_report(*(a_model(f"m{number}", 100.0 - number, p99_ms=number) for number in range(5)))
VIEW = LiveView("top inferences")


def pressed(text: str, view: LiveView = VIEW) -> LiveView:
    for key in split_keys(text):
        view = view.press_key(key, len(view.render_table(FIVE)) - 1, PAGE)
    return view


def names(view: LiveView) -> list[str]:
    """The Inferences on the screen, from the top."""
    lines = view.render_screen(view.render_table(FIVE), HEIGHT)
    assert len(lines) <= HEIGHT
    return [line.split()[0] for line in lines if line.startswith("ads/")]


def test_a_terminal_sends_characters_and_sequences() -> None:
    assert split_keys("r\x1b[Bq\x1b[5~\x1b") == ["r", "\x1b[B", "q", "\x1b[5~", "\x1b"]


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("", ["ads/m0", "ads/m1", "ads/m2"]),
        ("l", ["ads/m4", "ads/m3", "ads/m2"]),
        ("ln", ["ads/m0", "ads/m1", "ads/m2"]),
        ("\x1b[B", ["ads/m1", "ads/m2", "ads/m3"]),
        ("jjk", ["ads/m1", "ads/m2", "ads/m3"]),
        ("k", ["ads/m0", "ads/m1", "ads/m2"]),
        ("\x1b[6~", ["ads/m3", "ads/m4"]),  # and the note
        ("\x1b[6~\x1b[6~\x1b[6~\x1b[5~", ["ads/m0", "ads/m1", "ads/m2"]),
        ("/m3", ["ads/m3"]),
        ("/m3\x7f\r", ["ads/m0", "ads/m1", "ads/m2"]),
        ("/m3\x1b", ["ads/m0", "ads/m1", "ads/m2"]),
        ("/m3\r\x1b", ["ads/m0", "ads/m1", "ads/m2"]),
        ("/offline", []),
    ],
)
def test_keys_sort_scroll_and_filter(keys: str, shown: list[str]) -> None:
    assert names(pressed(keys)) == shown


def test_a_filter_without_a_row_says_how_to_leave_it() -> None:
    assert "nothing contains 'offline': Esc shows all" in pressed("/offline").render_table(FIVE)


def test_a_key_that_is_typed_into_the_filter_does_nothing_else() -> None:
    view = pressed("/wp")
    assert (view.filter_text, view.wide, view.is_paused) == ("wp", False, False)


def test_the_title_shows_what_the_keys_chose() -> None:
    title = pressed("lpw/m").render_screen([], HEIGHT, problem="away")[0]
    assert title == (
        "top inferences   reading the gateways   by latency   paused   filter: m_   not up to date: away"
    )
    assert "STATE" in pressed("w").render_table(FIVE)[0]


def test_pools_have_no_orders() -> None:
    pools = LiveView("top pools", has_orders=False)
    assert pressed("l", pools) == pools
    assert "sort" not in pools.render_screen([], HEIGHT)[-1]


class Terminal:
    """A pseudo-terminal with a screen, whose reports and keys come from a test."""

    def __init__(self) -> None:
        self.typist, self.keys_fd = pty.openpty()
        self.attributes = termios.tcgetattr(self.keys_fd)
        self.output = io.StringIO()
        console = Console(file=self.output, force_terminal=True, width=160, height=HEIGHT)
        self.screen = TableScreen(VIEW, console, self.keys_fd)
        self.answer: TopInferences | Exception = FIVE

    async def read(self) -> TopInferences:
        """The answer of the gateways."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def press(self, keys: str, *shown: str) -> None:
        """Press keys, and wait until the screen is drawn with these texts."""
        os.write(self.typist, keys.encode())
        await self.shows(*shown)

    async def shows(self, *texts: str) -> None:
        """Wait until the last drawing has these texts."""
        await eventually(lambda: all(text in self.drawing for text in texts), f"{texts} on the screen")

    @property
    def drawing(self) -> str:
        """What was drawn last."""
        return self.output.getvalue().rpartition("top inferences")[2]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    yield terminal
    os.close(terminal.typist)
    os.close(terminal.keys_fd)


async def test_keys_reach_the_screen_and_q_leaves_it_as_it_was(terminal: Terminal) -> None:
    following = asyncio.create_task(terminal.screen.show_reports(terminal.read, interval_s=0.01))
    await terminal.shows("ads/m0", "by requests")
    await terminal.press("l", "by latency", "ads/m4")
    terminal.answer = ApiUnavailableError("away")
    await terminal.shows("not up to date: away", "ads/m4")
    terminal.answer = a_report(a_model("new", 5.0))
    await terminal.shows("ads/new")
    assert "not up to date" not in terminal.drawing
    await terminal.press("p", "paused")
    terminal.answer = FIVE
    await terminal.press("w", "STATE", "ads/new")
    await terminal.press("p", "ads/m4")

    os.write(terminal.typist, b"q")
    await asyncio.wait_for(following, LONGEST_S)
    assert termios.tcgetattr(terminal.keys_fd) == terminal.attributes
    assert terminal.output.getvalue().endswith("\x1b[?25h\x1b[?1049l")


async def test_an_error_that_stays_ends_the_screen(terminal: Terminal) -> None:
    terminal.answer = PermanentError("forbidden")
    with pytest.raises(PermanentError, match="forbidden"):
        await terminal.screen.show_reports(terminal.read, interval_s=0.01)
    assert termios.tcgetattr(terminal.keys_fd) == terminal.attributes
