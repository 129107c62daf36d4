"""Requests, steps, the scheduler, memory and its ledger: no torch, no clock, no files."""
