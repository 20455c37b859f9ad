"""What commands ask an API server for, as separate processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback

INFERENCES = "/apis/tidegate.io/v1alpha1/namespaces/{}/inferences/ctr"


async def run_command(folder: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """Exit status, stderr, and the paths that the command asked for, all of them answered with 404."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.json_response({"kind": "Status", "code": 404}, status=404)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", *arguments, "--kubeconfig", str(kubeconfig)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaints = await process.communicate()
    assert process.returncode is not None
    return process.returncode, complaints.decode(), paths


@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [
        (("ctr",), "default"),
        (("ctr", "-n", "shop"), "shop"),
        (("ads/ctr",), "ads"),
        (("inference/ads/ctr",), "ads"),
    ],
)
async def test_calibrate_finds_an_inference_by_any_name(
    arguments: tuple[str, ...], namespace: str, tmp_path: Path
) -> None:
    _, complaint, paths = await run_command(tmp_path, "calibrate", *arguments)
    assert paths == [INFERENCES.format(namespace)]
    assert complaint.startswith(f'tidegate: Inference "ctr" not found in namespace "{namespace}"')
