"""Reads other engines' logs and explains them: facts, the planner's own figures, diagnoses."""

from kvhouse.doctor.report import Report, examine

__all__ = ["Report", "examine"]
