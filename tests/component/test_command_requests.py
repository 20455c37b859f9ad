"""What commands ask an API server for."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from builders.loopback import kubeconfig_of, on_loopback
from builders.waiting import eventually
from tidegate.cli.options import ExitStatus
from tidegate.main import app

INFERENCES = "/apis/tidegate.io/v1alpha1/namespaces/{}/inferences/ctr"


async def run_command(
    folder: Path, *arguments: str, headers: list[tuple[str, str]] | None = None, silent: bool = False
) -> tuple[int, str, list[str]]:
    """Exit status, stderr, and the paths that the command asked for, all of them answered with 404, or not at all.

    Adds the headers of impersonation to `headers`.
    """
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if headers is not None:
            headers.extend(item for item in request.headers.items() if item[0].startswith("Impersonate"))
        if silent:
            await asyncio.Event().wait()
        return web.json_response({"kind": "Status", "code": 404}, status=404)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address)
        command = [*arguments, "--kubeconfig", str(kubeconfig)]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    return result.exit_code, result.stderr, paths


@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [
        (("ctr",), "default"),
        (("ctr", "-n", "shop"), "shop"),
        (("ads/ctr",), "ads"),
        (("inference/ads/ctr",), "ads"),
        (("inference", "ctr", "-n", "shop"), "shop"),
        (("inf", "ads/ctr"), "ads"),
    ],
)
async def test_calibrate_finds_an_inference_by_any_name(
    arguments: tuple[str, ...], namespace: str, tmp_path: Path
) -> None:
    status, complaint, paths = await run_command(tmp_path, "calibrate", *arguments)
    assert (status, paths) == (ExitStatus.UNKNOWN, [INFERENCES.format(namespace)])
    assert complaint.startswith(f'tidegate: Inference "ctr" not found in namespace "{namespace}"')


@pytest.mark.parametrize("arguments", [("calibrate", "ads/ctr"), ("dashboard", "--no-browser")])
async def test_a_user_is_impersonated_with_groups(arguments: tuple[str, ...], tmp_path: Path) -> None:
    headers: list[tuple[str, str]] = []
    groups = ("--as", "eve", "--as-group", "ops", "--as-group", "sre")
    await run_command(tmp_path, *arguments, *groups, headers=headers)
    assert headers == [
        ("Impersonate-User", "eve"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Group", "sre"),
    ]


async def test_a_silent_api_server_is_given_up_after_the_request_timeout(tmp_path: Path) -> None:
    async def ask(*arguments: str) -> list[str]:
        """The paths that were asked for: none where a busy machine did not come to it in the time."""
        _, complaint, paths = await run_command(
            tmp_path, *arguments, "--request-timeout", "50ms", silent=True
        )
        assert "did not answer" in complaint
        return paths

    for arguments in (("calibrate", "ads/ctr"), ("get", "-A"), ("dashboard", "--no-browser")):
        paths = await eventually(partial(ask, *arguments), f"{arguments} asks in time")
        assert len(paths) == 1


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("status", "modelaccess", "ranking", "-n", "ads"), "namespaces/ads/modelaccesses/ranking"),
        (("why", "pool", "gold"), "computepools/gold"),
        (("history", "inference", "ads/ctr"), "namespaces/ads/inferences/ctr"),
        (("hold", "pool", "gold", "--for", "1h", "--reason", "x"), "computepools/gold"),
        (("resume", "inference", "ctr"), "namespaces/default/inferences/ctr"),
        (("override", "inf", "ads/ctr", "--end"), "namespaces/ads/inferences/ctr"),
        (
            ("release", "status", "modelaccess", "ranking", "-n", "ads"),
            "namespaces/ads/modelaccesses/ranking",
        ),
        (("release", "pause", "access/ads/ranking"), "namespaces/ads/modelaccesses/ranking"),
        (("bench", "inference", "ctr", "-n", "ads"), "namespaces/ads/inferences/ctr"),
    ],
)
async def test_a_kind_and_a_name_may_be_two_arguments(
    arguments: tuple[str, ...], path: str, tmp_path: Path
) -> None:
    status, complaint, paths = await run_command(tmp_path, *arguments)
    assert (status, paths[0]) == (ExitStatus.UNKNOWN, f"/apis/tidegate.io/v1alpha1/{path}"), complaint


async def test_a_release_is_looked_for_in_all_namespaces(tmp_path: Path) -> None:
    _, _, paths = await run_command(tmp_path, "release", "status", "ranking", "-A")
    assert paths == ["/apis/tidegate.io/v1alpha1/modelaccesses"]
