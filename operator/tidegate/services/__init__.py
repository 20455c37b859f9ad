"""Services that the command line and the dashboard share, one per use case; each needs a client with the user's rights."""
