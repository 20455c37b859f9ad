"""Two builds at once wait for each other."""

import threading
from pathlib import Path

import pytest

from tidegate_localcluster.locks import hold_lock

WITHIN_S = 10.0


def test_the_second_waits_and_names_the_process_it_waits_for(tmp_path: Path) -> None:
    told, order = threading.Event(), list[str]()
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    def second() -> None:
        with hold_lock(tmp_path / "lock", task="building", progress=tell):
            order.append("second")

    with hold_lock(tmp_path / "lock", task="building", progress=pytest.fail):
        (tmp_path / "pid").write_text((tmp_path / "lock").read_text())
        waiting = threading.Thread(target=second)
        waiting.start()
        assert told.wait(WITHIN_S)
        order.append("first")
    waiting.join(WITHIN_S)

    assert order == ["first", "second"]
    assert lines == [f"waiting for process {(tmp_path / 'pid').read_text()}, which is building"]


def test_a_failed_holder_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path / "lock", task="x", progress=pytest.fail):
        raise ZeroDivisionError
    with hold_lock(tmp_path / "lock", task="x", progress=pytest.fail):
        pass
