"""Raw files to data sets: one file a command, and the worker pool. No TensorFlow."""
