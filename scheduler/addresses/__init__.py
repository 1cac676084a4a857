"""Bytes and lives: where in one memory buffers lie."""
