"""Data on disk and the order in which it is used. No TensorFlow but in `feed`."""
