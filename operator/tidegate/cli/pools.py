"""`tidegate pools device-plugin-config`: what NVIDIA's device plugin has to be told so that a ComputePool has its slices."""

from typing import Annotated

import typer

from tidegate.cli.options import Format, Output, show

SlicesPerGpu = Annotated[
    int, typer.Option("--slices-per-gpu", min=2, max=48, help="As spec.slice.mps.slicesPerGPU of the pool.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tidegate pools`."""
    app.command("device-plugin-config")(device_plugin_config)


def device_plugin_config(slices_per_gpu: SlicesPerGpu, output: Output = Format.TEXT) -> None:
    """Print the key and the value to put into the device plugin's ConfigMap (its Helm values: config.map)."""
    from tidegate.reports.device_plugin import DevicePluginReport
    from tidegate.resources.slices import config_key, plugin_config

    show(DevicePluginReport(key=config_key(slices_per_gpu), config=plugin_config(slices_per_gpu)), output)
