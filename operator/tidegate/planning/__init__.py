"""From what is observed to what is to be done: one pure planner per kind."""
