"""What an allocation policy would do with a day of demand: replicas load, serve and drain on a pool that does not exist."""
