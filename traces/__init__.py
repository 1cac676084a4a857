"""What happened in a simulation: events, metrics, tables and pictures."""
