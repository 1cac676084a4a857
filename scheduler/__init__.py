"""Where and when: tiles, addresses, buffering, the program, and its execution."""
