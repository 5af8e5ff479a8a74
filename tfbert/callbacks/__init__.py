"""What happens after a step or an epoch, one class a file."""
