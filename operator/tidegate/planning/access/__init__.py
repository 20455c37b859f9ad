"""Plan a ModelAccess: targets, releases, pipelines and proxies."""
