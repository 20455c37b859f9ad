"""Declare `tidegate pools device-plugin-config`: the configuration of NVIDIA's device plugin for a ComputePool."""

from typing import Annotated

import typer

from tidegate.cli.options import Format, Output, show

SlicesPerGpu = Annotated[
    int,
    typer.Option("--slices-per-gpu", min=2, max=48, help="Value of the pool's spec.slice.mps.slicesPerGPU."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate pools`."""
    app.command("device-plugin-config")(device_plugin_config)


def device_plugin_config(slices_per_gpu: SlicesPerGpu, output: Output = Format.TEXT) -> None:
    """Print the key and the value to put into the device plugin's ConfigMap (its Helm values: config.map)."""
    from tidegate.reports.device_plugin import DevicePluginReport
    from tidegate.resources.slices import config_key, plugin_config

    show(DevicePluginReport(key=config_key(slices_per_gpu), config=plugin_config(slices_per_gpu)), output)
