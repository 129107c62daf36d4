"""Reads what servers expose at ``/metrics``: scrapes as facts, and two of them as rates."""
