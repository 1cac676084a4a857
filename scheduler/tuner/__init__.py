"""The AutoTuner: candidates of every op, their evaluation by simulation, the search, and its result."""
