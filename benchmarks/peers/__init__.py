"""What peers do for the same jobs; each runs in an environment of its own."""
