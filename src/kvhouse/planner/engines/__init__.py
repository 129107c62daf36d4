"""What other engines hold for a model, by their own rules."""
