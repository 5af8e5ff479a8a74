"""Checkpoint folders that a run leaves: each appears when all of it is on the disk, under its final name."""

from pathlib import Path

from tfbert.disk import new_folder
from tfbert.model.checkpoint_writer import write_checkpoint
from tfbert.model.mlm import MaskedLM


def export(folder: Path, model: MaskedLM, vocab: Path | None, cased: bool | None) -> bool:
    """Writes `folder`, in every format that is known; does nothing where it exists.

    Args:
        folder: of the export; those above it are made.
        model: as `write_checkpoint` takes it.
        vocab: as `write_checkpoint` takes it.
        cased: as `write_checkpoint` takes it.

    Returns:
        Whether it was written now.

    Raises:
        OSError: it could not be written; nothing of it is left.
    """
    if folder.exists():
        return False
    with new_folder(folder) as temporary:
        write_checkpoint(temporary, model, vocab, cased)
    return True
