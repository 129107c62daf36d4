"""The bench: what an engine or a server does under a load, measured."""
