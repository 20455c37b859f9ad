"""The controllers make their certificate and renew it under orders, without a restart and without one that fails."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from builders import probe_model
from builders.waiting import ends_in_time
from faults.installation import Site, a_site, allow_secrets, install
from faults.operator_process import OperatorProcess
from faults.scenarios import NAME, Step
from faults.sweep import SYSTEM, Sweep
from faults.world import INFERENCE
from tidegate_localcluster.fleet_demo.api import ApiServerClient

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.integration]

_SECRETS: Final = f"/api/v1/namespaces/{SYSTEM}/secrets"
_OWN: Final = "tidegate-controllers-certificate"
_SPACE: Final = "models"


@asynccontextmanager
async def controllers(
    binaries: Mapping[str, Path],
    folder: Path,
    *,
    spread_s: float,
    late_s: float,
) -> AsyncIterator[Sweep]:
    """Controllers that make their own certificate, and two pods of a model."""
    with a_site(binaries, folder) as site:
        async with site.api() as api:
            await install(api)
            await allow_secrets(api, _OWN)
            empty = {"metadata": {"name": _OWN, "namespace": SYSTEM}, "type": "Opaque"}
            await api.call("POST", _SECRETS, empty)
            for version in (1, 2):
                probe_model.publish(site.folder / "models" / NAME, version)
            async with Sweep(api, site.folder, _settings(site, spread_s)).running() as sweep:
                await sweep._make_namespace(_SPACE)
                await sweep._take(_SPACE, Step({"replicas": 2, "model": {"version": "1"}}))
                for agent in sweep.kubelet.agents(_SPACE):
                    agent.fresh = True
                late = asyncio.create_task(_deliver(sweep, late_s))
                try:
                    yield sweep
                finally:
                    late.cancel()
                    with suppress(asyncio.CancelledError):
                        await late
    shutil.rmtree(folder / "control-plane" / "etcd", ignore_errors=True)


def _settings(site: Site, spread_s: float) -> Mapping[str, str]:
    return {
        "tls_directory": str(site.folder / "own"),
        "models_host_path": "/models",
        "own_certificates": '["controllers"]',
        "certificate_spread_s": str(spread_s),
        "log_level": "debug",
    }


async def _deliver(sweep: Sweep, late_s: float) -> None:
    """ConfigMaps take so long to pods."""
    while True:
        await asyncio.sleep(late_s)
        await sweep.kubelet.deliver(_SPACE)


async def held(api: ApiServerClient) -> Mapping[str, bytes]:
    body = await api.get(f"{_SECRETS}/{_OWN}")
    assert body is not None
    return {name: base64.b64decode(value) for name, value in (body.get("data") or {}).items()}


async def swaps_until_renewed(sweep: Sweep, operator: OperatorProcess) -> None:
    """Orders one version after the other, until some were given with the new certificate."""
    api, left = sweep.api, 4
    await api.call("PATCH", f"{_SECRETS}/{_OWN}", {"metadata": {"annotations": {"tidegate.io/renew": "now"}}})
    async with ends_in_time("the certificate is renewed", timeout_s=120):
        for version in itertools.cycle((2, 1)):
            left -= bool(operator.events("client_certificate_renewed"))
            wanted = {"spec": {"model": {"version": str(version)}}}
            await api.call("PATCH", f"{INFERENCE.format(_SPACE)}/{NAME}", wanted)
            await Sweep.wait_for(partial(_serve, sweep, version), f"all pods serve {version}", 60)
            if not left:
                return


async def _serve(sweep: Sweep, version: int) -> bool:
    return all(agent.report().serving == version for agent in sweep.kubelet.agents(_SPACE))


def refused(operator: OperatorProcess) -> Sequence[object]:
    """Calls of agents that were refused, those that only asked too; not those that a busy machine let wait for too long."""
    silent = [*operator.events("order_not_delivered"), *operator.events("agent_silent")]
    return [each for each in silent if "Timeout" not in str(each)]


@pytest.mark.slow(
    "unit/test_own_certificates.py and component/test_xds_gateway_tls.py: each step of a rotation, and who takes it"
)
async def test_a_certificate_is_made_and_renewed_and_no_order_fails(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    async with controllers(control_plane_binaries, tmp_path / "site", spread_s=12, late_s=2) as sweep:
        operator = sweep._operator
        assert operator is not None
        first = await held(sweep.api)

        await swaps_until_renewed(sweep, operator)

        renewed = operator.events("client_certificate_renewed")
        assert len(renewed) == 1
        assert refused(operator) == []
        assert sweep.restarts == 0
        after = await held(sweep.api)
        assert first["ca.crt"] in after["ca.crt"]
        assert first["tls.key"] != after["tls.key"]
        config = [
            body["data"]["client-ca.crt"].encode()
            for body in await sweep.api.list_objects(f"/api/v1/namespaces/{_SPACE}/configmaps")
            if "client-ca.crt" in body["data"]
        ]
        assert config
        assert all(each == after["ca.crt"] for each in config)
        assert "tidegate.io/renew" not in (await sweep.api.get(f"{_SECRETS}/{_OWN}") or {})["metadata"].get(
            "annotations", {}
        )


@pytest.mark.slow("the negative of the test beside it, on a control plane of its own")
async def test_one_that_is_shown_before_agents_know_its_authority_is_refused(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    """The measure can fail: with less time than a ConfigMap takes, pods learn of the new authority after the first calls that need it."""
    async with controllers(control_plane_binaries, tmp_path / "site", spread_s=0.4, late_s=15) as sweep:
        operator = sweep._operator
        assert operator is not None
        await swaps_until_renewed(sweep, operator)
        assert refused(operator) != []
