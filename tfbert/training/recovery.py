"""Going on behind a fault: back to the last good state, at a lower learning rate or with smaller micro-batches."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tfbert.callbacks.save_state import SaveState
from tfbert.errors import LossNotFinite, TrainingError
from tfbert.loop.state import read_state
from tfbert.progress import logger
from tfbert.strategy import sum_over_workers


def lower_the_rate(
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
    if tries > most or not go_back(folder, saver, strategy):
        raise error
    sum_over_workers(strategy, np.zeros(1))  # all have read it before the next one is written
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


def shrink_micro_batches(
    folder: Path, saver: SaveState, strategy: tf.distribute.Strategy, error: BaseException, most: int
) -> None:
    """Puts a stage back to its last saved state, with twice the micro-batches a step.

    Args:
        folder: `last/` of the run.
        saver: of the stage.
        strategy: whose replicas hold the variables.
        error: says that memory ran out.
        most: micro-batches, at most.

    Raises:
        TrainingError: they cannot be any smaller, or there is no state of this stage.
    """
    trainer = saver.trainer
    tried = trainer.accumulate
    if tried >= most or not go_back(folder, saver, strategy):
        raise out_of_memory(error, tried) from error
    trainer.cut_into(min(2 * max(tried, trainer.accumulate), most))
    logger.warning(
        "A step did not fit into memory. Going back to step %d with %d micro-batches a step in place of %d",
        trainer.step,
        trainer.accumulate,
        tried,
    )
    saver.save(trainer.position())


def out_of_memory(error: BaseException, accumulate: int) -> TrainingError:
    """What to tell a user."""
    said = str(error).strip().splitlines()
    return TrainingError(
        f"A step must fit into the memory of the devices. Received: {accumulate} micro-batch(es) a step, and "
        f"{said[0] if said else type(error).__name__}. The last state is kept. Raise --accumulate, or use "
        "--auto_accumulate, in another --run_dir."
    )


def go_back(folder: Path, saver: SaveState, strategy: tf.distribute.Strategy) -> bool:
    """Restores the last saved state, if it is one of the saver's stage; tells whether it did."""
    state = read_state(folder)
    if state is None or state[1]["stage"] != saver.stage:
        return False
    with strategy.scope():
        saver.restore(*state)
    return True
