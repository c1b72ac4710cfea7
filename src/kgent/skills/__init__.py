"""Skills: find them, index them, load them."""
