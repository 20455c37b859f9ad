"""`tidegate controllers` as a process that can be killed and started again, forked from a warmed interpreter.

Its imports take two seconds of CPU, which a hundred restarts need not pay for; a forked child has caches, connections
and leadership as empty as a process that was started by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from faults.proxy import Door, Proxy

_NURSERY: Final = """
import ctypes, os, signal, sys
import tidegate.main, tidegate_controllers.manager  # the slow part
def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
end_with_parent()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("warm", flush=True)
for line in sys.stdin:
    kubeconfig, log, before = line.split()
    child = os.fork()
    if child == 0:
        end_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, theirs in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(ours, theirs)
        os.environ["KUBECONFIG"] = kubeconfig
        sys.argv = ["tidegate", "controllers"]
        exec(open(before).read())
        tidegate.main.app()
        os._exit(0)
    print(child, flush=True)
"""


class Nursery:
    """The warmed interpreter that operators are forked from; use it as an async context manager."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = settings
        self.before = ""
        """Python that runs in each operator before it works: how a test breaks it on purpose."""
        self._process: asyncio.subprocess.Process | None = None
        self._born = 0

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "TIDEGATE_PROBE_PORT": "0",
            "TIDEGATE_LOG_FORMAT": "json",
            **{f"TIDEGATE_{name.upper()}": value for name, value in self._settings.items()},
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _NURSERY,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._says()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def bear(self, proxy: Proxy) -> OperatorProcess:
        """A new operator, which works against the proxy through a door of its own."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._born += 1
        door = await proxy.door()
        kubeconfig = self._folder / f"{self._born}.kubeconfig"
        log = self._folder / f"{self._born}.log"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(door.url)))
        before = self._folder / f"{self._born}.py"
        before.write_text(self.before)
        self._process.stdin.write(f"{kubeconfig} {log} {before}\n".encode())
        await self._process.stdin.drain()
        return OperatorProcess(int(await self._says()), door, log)

    async def _says(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        assert line, "the interpreter that operators are forked from has ended"
        return line


class OperatorProcess:
    """One process of the operator."""

    def __init__(self, pid: int, door: Door, log: Path) -> None:
        self.log = log
        self._door = door
        self._pid = pid
        self._handle = os.pidfd_open(pid)  # another process may get the number, never this handle
        self._over = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._handle, self._ended)

    def kill(self) -> None:
        """kill -9; nothing that it has sent and that has not been forwarded yet ever is."""
        self._door.shut = True
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it still runs."""
        with suppress(ProcessLookupError):
            if self.running:
                signal.pidfd_send_signal(self._handle, number)

    async def gone(self) -> None:
        """Waits for its end, and closes its door."""
        await self._over.wait()
        await self._door.close()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._over.is_set()

    def events(self, name: str) -> list[dict[str, object]]:
        """The lines of its log with this event."""
        if not self.log.exists():
            return []
        wanted = b'"event": "' + name.encode() + b'"'
        return [json.loads(line) for line in self.log.read_bytes().splitlines() if wanted in line]

    @property
    def leads(self) -> bool:
        """Whether it has said that it leads."""
        return bool(self.events("leading"))

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._over.set()


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sweep", "cluster": {"server": url}}],
        "users": [{"name": "sweep", "user": {"token": "the-proxy-speaks-for-us"}}],
        "contexts": [{"name": "sweep", "context": {"cluster": "sweep", "user": "sweep"}}],
        "current-context": "sweep",
    }
