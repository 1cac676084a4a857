"""The alarm of the number check, tried: defects put into a run on purpose, and random models without any."""
