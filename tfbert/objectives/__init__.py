"""What a training step minimises: one class a file."""
