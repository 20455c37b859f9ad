"""The rendering of the routing IR to Envoy's resources: one module for each type or filter."""
