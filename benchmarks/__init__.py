"""Our speed beside that of peers: python -m benchmarks."""
