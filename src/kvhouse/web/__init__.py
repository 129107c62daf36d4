"""Other people's servers: their addresses, the way to them, and answers of a bounded size."""
