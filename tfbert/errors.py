"""The exception tree.

TfbertError
├── ConfigError       settings that are wrong or cannot work together
├── DataError         input or data-set files that are wrong; the message begins with `file:line:` where there is one
├── CheckpointError   weights that are missing, damaged or do not fit the model
├── TrainingError     a run that cannot go on
│   └── LossNotFinite     its loss, gradient or weights are not finite
└── WorkerError       a worker process failed; carries its traceback

Messages read *rule. Received: value. What to do.* Scripts print all but a WorkerError as one line and exit 2.
"""


class TfbertError(Exception):
    """Base of every error that the product raises on purpose."""


class ConfigError(TfbertError):
    """A setting is wrong, or two settings cannot work together."""


class DataError(TfbertError):
    """An input file or a data set is wrong."""


class CheckpointError(TfbertError):
    """Weights are missing, damaged or do not fit the model."""


class TrainingError(TfbertError):
    """Training cannot go on."""


class LossNotFinite(TrainingError):
    """A loss, its gradient or the weights are not finite."""


class WorkerError(TfbertError):
    """A worker process raised or died; the message holds its traceback and the lines it worked on."""
