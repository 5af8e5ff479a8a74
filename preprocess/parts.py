"""Parts: what workers make of the chunks of an input, and what the merge reads."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

ROW = np.dtype(
    [
        ("size", "<u4"),  # bytes of the line
        ("length", "<i4"),  # token ids in the line
        ("full_length", "<i4"),  # before truncation
        ("label", "<i4"),  # class id or -1
        ("label_key", "<u4"),  # equal for equal labels of any task
        ("line", "<u4"),  # line number in the chunk
        ("hash", "<u8"),  # of the text; decides duplicates together with hash2, and the split alone
        ("hash2", "<u8"),
    ]
)


@dataclass(frozen=True)
class PartStats:
    """Counts of one part; `source` and `first_line` are filled in by the parent.

    Attributes:
        lines: rows read.
        physical_lines: lines of the file; more than `lines` where a CSV record spans several.
        rows: rows kept.
        rejected: rows rejected, by reason.
        first_bad: the first reject that is the data's fault.
        counts: what else the job counts, by kind and reason.
        sums: CRC-32 of the part's files, by suffix.
        source: number of the input in its group.
        first_line: line number of the part's first row.
    """

    lines: int
    physical_lines: int
    rows: int
    rejected: dict[str, int]
    first_bad: dict[str, Any] | None
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    source: int = 0
    first_line: int = 1

    def at(self, source: int, first_line: int) -> "PartStats":
        return replace(self, source=source, first_line=first_line)


@dataclass(frozen=True)
class PartFiles:
    """The files of one part; the statistics come last, and with them the part is whole.

    Suffixes: `.jsonl` the lines, `.rows` the table, `.rejects` unusable rows; where duplicates are dropped, `.texts`
    the cut texts of all rows, a JSON line each; where rows have several classes, `.classes` their (row, class) pairs;
    where rows belong to groups, `.groups` the two hashes of each row's group.
    """

    prefix: str

    def path(self, suffix: str) -> Path:
        return Path(self.prefix + suffix)

    def save(self, contents: Mapping[str, bytes | bytearray], stats: PartStats) -> PartStats:
        for suffix, content in contents.items():
            self.path(suffix).write_bytes(content)
        stats = replace(stats, sums={suffix: zlib.crc32(content) for suffix, content in contents.items()})
        described = orjson.dumps(asdict(stats))
        temporary = self.path(".stats.tmp")
        temporary.write_bytes(b"%08x\n" % zlib.crc32(described) + described)
        temporary.replace(self.path(".stats"))
        return stats

    def load(self) -> PartStats | None:
        """The statistics of a whole part, or None where it is absent or a file of it was cut or changed."""
        try:
            checksum, _, described = self.path(".stats").read_bytes().partition(b"\n")
            if checksum != b"%08x" % zlib.crc32(described):
                return None
            stats = PartStats(**orjson.loads(described))
            whole = all(zlib.crc32(self.path(suffix).read_bytes()) == checked for suffix, checked in stats.sums.items())
        except (OSError, ValueError, TypeError):  # TypeError: of another version
            return None
        return stats if whole else None

    def table(self) -> npt.NDArray[np.void]:
        return np.fromfile(self.path(".rows"), ROW)

    def table_of_groups(self) -> npt.NDArray[np.void]:
        """The table with the hashes of the groups in place of those of the texts."""
        table = self.table()
        hashes = np.fromfile(self.path(".groups"), "<u8").reshape(-1, 2)
        table["hash"], table["hash2"] = hashes[:, 0], hashes[:, 1]
        return table

    def rejects(self) -> Iterator[dict[str, Any]]:
        with self.path(".rejects").open("rb") as file:
            for line in file:
                yield orjson.loads(line)

    def texts(self) -> list[bytes]:
        return self.path(".texts").read_bytes().split(b"\n")

    def classes(self) -> npt.NDArray[np.int32] | None:
        path = self.path(".classes")
        return np.fromfile(path, "<i4").reshape(-1, 2) if path.exists() else None
