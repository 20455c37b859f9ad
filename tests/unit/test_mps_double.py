"""The double of MPS' control program prints what the real one printed on a GPU, in each recorded state."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.mps import SERVER, MpsDouble
from tidegate_dataplane.node_agent.mps import DaemonGoneError, MpsControl

_RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "mps_recorded.json").read_text())
_PIDS = {"SERVER": SERVER, "UNKNOWN": 99999999}
_DEAD = "Cannot find MPS control daemon process"
_BUSY = "Cannot send command to MPS control daemon process"


@pytest.mark.parametrize("recorded", _RECORDED["states"], ids=lambda recorded: recorded["state"])
def test_double_prints_what_the_real_program_printed(tmp_path: Path, recorded: dict[str, Any]) -> None:
    answers = recorded["answers"]
    double = MpsDouble(tmp_path)
    _set_state(double, answers)
    hangs = answers["get_server_list"]["output"] is None
    for command, answer in answers.items():
        try:
            done = subprocess.run(
                [str(double.program)],
                input=f"{_with_pids(command)}\n",
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(double.pipe)},
                capture_output=True,
                text=True,
                timeout=1 if hangs else 20,
                check=False,
            )
        except subprocess.TimeoutExpired:
            assert hangs, command
            continue
        assert (done.stdout, done.returncode) == (_with_pids(answer["output"]), answer["status"]), command


def _set_state(double: MpsDouble, answers: dict[str, Any]) -> None:
    servers = answers["get_server_list"]["output"]
    if servers is None:
        double.write(daemon="hung")
    elif servers.startswith(_DEAD):
        double.write(daemon="dead")
    elif not servers:
        double.write_without_server()
    else:
        names = answers["get_client_list SERVER"]["output"].split()
        for position, name in enumerate(names):
            _PIDS.setdefault(name, 7000 + position)
        double.write(
            status=answers["get_server_status SERVER"]["output"].strip(),
            clients=[_PIDS[name] for name in names],
        )


def _with_pids(text: str) -> str:
    for name, pid in _PIDS.items():
        text = text.replace(name, str(pid))
    return text


@pytest.mark.parametrize("busy", [1, 2])
def test_daemon_that_is_busy_for_a_moment_is_asked_again(tmp_path: Path, busy: int) -> None:
    double = MpsDouble(tmp_path)
    double.write(busy=busy)
    assert asyncio.run(_list_servers(double)) == (SERVER,)


def test_daemon_that_takes_no_command_is_gone(tmp_path: Path) -> None:
    double = MpsDouble(tmp_path)
    double.write(busy=10)
    with pytest.raises(DaemonGoneError, match=_BUSY):
        asyncio.run(_list_servers(double))
    assert double.state["busy"] == 7


async def _list_servers(double: MpsDouble) -> tuple[int, ...]:
    return await MpsControl(str(double.program), double.pipe, 20.0).list_servers()
