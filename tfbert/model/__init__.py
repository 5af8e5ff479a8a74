"""The encoder, its heads, and weights from anywhere."""
