"""Names that settings choose from; here, so that settings can be read before TensorFlow is imported."""

OPTIMIZERS = ("adamw", "lamb", "sgd")
SCHEDULES = ("linear", "cosine", "polynomial", "constant")  # of the learning rate by steps
LOSSES = ("ce", "focal", "dmi")
HEADS = ("pool", "cls", "mean")
