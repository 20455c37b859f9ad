"""The reconcilers: observe, plan, apply. One file per kind; every decision is the planner's."""
