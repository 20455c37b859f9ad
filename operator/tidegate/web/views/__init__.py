"""What pages and API show of the fleet, as values: nothing here knows HTTP."""
