"""The training loop: steps, what they keep beside the weights, the clock and the state on disk."""
