"""The routing IR in Envoy's words: one module for each type of resource."""
