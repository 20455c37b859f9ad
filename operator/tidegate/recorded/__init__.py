"""A recorded fleet demo, and a server that answers for its cluster: the dashboard without a cluster."""
