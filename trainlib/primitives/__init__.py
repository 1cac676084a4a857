"""One file per primitive: its shapes, its steps, its reference and its tiles."""
