"""What keeps a process of ours going: work queue, leader election, probes, logging and the clock."""
