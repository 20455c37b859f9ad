"""Fixtures for all tests, one module of tests/fixtures per kind of surroundings."""

import gc

from stages.examples import load_hypothesis_profile

load_hypothesis_profile()
# Half of the time that pytest took to collect went into searches for garbage in what is imported: there is none.
gc.disable()


def pytest_collection_finish() -> None:
    """Search for garbage again, but not in modules and tests, which stay to the end."""
    gc.freeze()
    gc.enable()


# A module that others import stands before them: pytest must meet it first to rewrite its assertions.
pytest_plugins = [
    "stages.plugin",
    "fixtures.sharing",
    "fixtures.order",
    "fixtures.control_plane",
    "fixtures.crds",
    "fixtures.audit_log",
    "fixtures.audit",
    "fixtures.cluster",
    "fixtures.kube_client",
    "fixtures.envoy",
    "fixtures.prometheus",
    "fixtures.dashboard",
    "fixtures.browser",
    "fixtures.golden",
    "fixtures.processes",
    "fixtures.web_process",
    "fixtures.chart",
    "fixtures.pools",
    "fixtures.batch_jobs",
    "fixtures.allocated",
    "fixtures.command_line",
    "fixtures.sweeps",
    "fixtures.triton",
    "fixtures.agent",
    "fixtures.object_store",
    "fixtures.installed",
    "fixtures.mps",
    "fixtures.gpu_fleet",
    "fixtures.kueue",
    "fixtures.kafka",
]
