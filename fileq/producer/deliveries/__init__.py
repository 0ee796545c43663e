"""Deliveries: directories whose files are a batch (`producer.deliveries`)."""
