"""What a run writes down about itself, as it happens."""
