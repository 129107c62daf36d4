"""A pool at a telling moment of a backlog, driven step by step without a clock."""
