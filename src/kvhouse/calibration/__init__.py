"""Calibration: step times measured, fitted, kept as a profile, and held against what happened."""
