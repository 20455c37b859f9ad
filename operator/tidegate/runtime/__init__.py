"""Services that keep a Tidegate process running: work queue, leader election, probes, logging and the clock."""
