"""Whole training runs: each file is a config and `run(config)`."""
