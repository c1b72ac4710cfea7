"""Model services behind one protocol. Adapters are imported when a configuration names them."""
