"""What people do to a cluster and ask of it, by the command line or the dashboard; each needs a client that has their rights."""
