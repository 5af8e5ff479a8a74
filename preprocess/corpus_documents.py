"""The documents of a corpus between reading and packing: where each goes, and where it lies for texts to lend."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from preprocess.corpus_pack import PLACE, PackSettings
from preprocess.corpus_read import read_table
from preprocess.parts import PartFiles, PartStats
from preprocess.split import TRAIN, VAL, TextGroups, bucket_bits
from preprocess.work_folder import WorkFolder
from tfbert.errors import DataError
from tfbert.progress import logger

if TYPE_CHECKING:
    from preprocess.corpus import CorpusConfig

BUCKET_BYTES = 64 << 20  # about, of rows in memory together while they are shuffled
_BYTES_A_TOKEN = 7  # of a row on disk


class Documents:
    """The documents of all parts, in order."""

    def __init__(self, work: WorkFolder, parts: list[PartStats]):
        self._work, self.parts = work, parts
        self.first = np.cumsum([0, *(part.rows for part in parts)]).tolist()  # number of the first one of each part
        self.inherited = [0]  # for each part, hash of the document that the part before ends with
        for part in parts[:-1]:
            self.inherited.append(part.counts["last"]["hash"] or self.inherited[-1])

    @property
    def total(self) -> int:
        return int(self.first[-1])

    def files(self, number: int) -> PartFiles:
        return self._work.files("documents", number)

    def tables(self) -> Iterator[npt.NDArray[np.void]]:
        for number in range(len(self.parts)):
            yield read_table(self.files(number), self.inherited[number])

    def split(self, config: "CorpusConfig") -> TextGroups:
        """Where every document goes."""
        groups = TextGroups(self._work.folder, "documents", self.tables, self.total, bucket_bits(self.total))
        groups.compare(drop=config.dedup)
        if config.val_fraction and not groups.split(config.val_fraction, 0):
            logger.warning("no document was set apart for validation: there are too few for the fraction")
        return groups

    def pack_settings(self, config: "CorpusConfig", destination: TextGroups) -> PackSettings:
        """Settings of the second half of the work; writes what texts are lent from, for NSP."""
        tokens = Counter[str]()
        lends = config.pairs == "nsp"
        lenders = {group: self._work.folder / f"documents.{group}.work" for group in ("train", "val")} if lends else {}
        places = self._work.folder / "documents.places.work"
        different: dict[str, set[int]] = {"train": set(), "val": set()}
        with ExitStack() as stack:
            place_file = stack.enter_context(places.open("wb")) if lends else None
            files = {group: stack.enter_context(path.open("wb")) for group, path in lenders.items()}
            for number, table in enumerate(self.tables()):
                goes = destination.destination.read(self.first[number], len(table))
                for group, code in (("train", TRAIN), ("val", VAL)):
                    chosen = (goes == code) & (table["sentences"] > 0)
                    tokens[group] += int(table["tokens"][chosen].sum())
                    if lends:
                        (self.first[number] + np.flatnonzero(chosen)).astype("<i8").tofile(files[group])
                        if len(different[group]) < 2:
                            different[group].update(np.unique(table["hash"][chosen])[:2].tolist())
                if place_file is not None:
                    _places(number, table).tofile(place_file)
        if lends:
            self._check_lenders(tokens, different)
        return PackSettings(
            folder=str(self._work.folder),
            vocab=config.vocab,
            packing=config.packing,
            seed=config.seed,
            words=config.whole_words != "none",
            buckets={group: max(1, -(-tokens[group] * _BYTES_A_TOKEN // BUCKET_BYTES)) for group in ("train", "val")},
            places=str(places) if lends else None,
            lenders={group: str(path) for group, path in lenders.items() if tokens[group]},
            store=config.store,
        )

    @staticmethod
    def _check_lenders(tokens: Counter[str], different: dict[str, set[int]]) -> None:
        for group, hashes in different.items():
            if tokens[group] and len(hashes) < 2:
                raise DataError(
                    f"--pairs nsp takes random texts from other documents. Received: one document in the {group} part. "
                    f"Give more documents{', or another --val_fraction' if group == 'val' else ''}, or use --pairs sop."
                )


def _places(number: int, table: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    places = np.zeros(len(table), PLACE)
    places["part"] = number
    places["first_token"] = np.cumsum(table["tokens"]) - table["tokens"]
    places["first_sentence"] = np.cumsum(table["sentences"], dtype=np.int64) - table["sentences"]
    places["sentences"], places["hash"] = table["sentences"], table["hash"]
    return places
