"""Going on behind a loss that is not finite: back to the last good state, at a lower learning rate."""

from pathlib import Path

import tensorflow as tf

from tfbert.callbacks.save_state import SaveState
from tfbert.errors import LossNotFinite
from tfbert.progress import logger
from tfbert.state import read_state


def recover(
    folder: Path, saver: SaveState, strategy: tf.distribute.Strategy, error: LossNotFinite, most: int, factor: float
) -> None:
    """Puts a stage back to its last saved state, with the learning rate multiplied by `factor` from there on.

    The state is saved again at once, with the rate and the number of tries: a run that is stopped afterwards goes on
    with them.

    Args:
        folder: `last/` of the run.
        saver: of the stage.
        strategy: whose replicas hold the variables.
        error: what happened.
        most: tries of a stage, in all.
        factor: above 0, at most 1.

    Raises:
        LossNotFinite: there are no tries left, or no state of this stage.
    """
    trainer = saver.trainer
    tries = trainer.retries + 1
    state = read_state(folder) if tries <= most else None
    if state is None or state[1]["stage"] != saver.stage:
        raise error
    with strategy.scope():
        saver.restore(*state)
    trainer.rate_factor *= factor ** (tries - trainer.retries)
    trainer.retries = tries
    logger.warning(
        "%s Going back to step %d with the learning rate times %g (try %d of %d)",
        error,
        trainer.step,
        trainer.rate_factor,
        tries,
        most,
    )
    saver.save(trainer.position())
