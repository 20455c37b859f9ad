"""Fixtures for all tests, one module of tests/fixtures per kind of surroundings."""

pytest_plugins = ["fixtures.cluster", "fixtures.control_plane", "fixtures.crds", "fixtures.kube_client", "fixtures.envoy"]
