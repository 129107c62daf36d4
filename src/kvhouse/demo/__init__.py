"""Guided tours: one job each, from the plan to the measured run."""
