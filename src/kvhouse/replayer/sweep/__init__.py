"""Sweeps: a grid of replays over all cores or a Ray cluster, with a results file that resumes."""

from kvhouse.replayer.sweep.grid import Cell, Grid, Rate
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.run import SweepResult, run_sweep
from kvhouse.replayer.sweep.work import Sweep, sweep_of

__all__ = ["Cell", "Grid", "Rate", "Row", "Sweep", "SweepResult", "run_sweep", "sweep_of"]
