"""A data set in words: what was read, kept and rejected, the labels, the lengths, a max_len to choose."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tfbert.data.manifest import Manifest, Part

PERCENTILES = (50, 90, 95, 99, 100)


def length_percentile(histogram: Mapping[str, int], percent: float) -> int:
    """Smallest length that covers `percent` of the rows of a `{length: rows}` histogram; 0 for no rows."""
    lengths = sorted((int(length), rows) for length, rows in histogram.items())
    wanted = percent / 100 * sum(rows for _, rows in lengths)
    covered = 0
    for length, rows in lengths:
        covered += rows
        if covered >= wanted:
            return length
    return 0


def suggested_max_len(histogram: Mapping[str, int]) -> int:
    """The multiple of 8 that keeps 99 % of the rows whole."""
    return max(8, -(-length_percentile(histogram, 99) // 8) * 8)


def summary_lines(out: Path, manifest: Manifest) -> list[str]:
    lines = [f"data set {out}"]
    for group, read in manifest.read.items():
        rejected = sum(read["rejected"].values())
        lines.append(f"  {group} input: {read['lines']:,} rows read = {read['kept']:,} kept + {rejected:,} rejected")
        lines += [f"    rejected, {reason}: {count:,}" for reason, count in read["rejected"].items()]
    for name, part in manifest.parts.items():
        lines += _part_lines(name, part, manifest.encoding["max_len"])
    if manifest.conflicts:
        lines.append(f"  texts with several labels: {manifest.conflicts:,}")
    lines += [f"  rows of {name} whose text is in train: {count:,}" for name, count in manifest.leaked.items()]
    if any(sum(read["rejected"].values()) for read in manifest.read.values()):
        lines.append(f"  rejected rows: {out / 'rejects.jsonl'}")
    return lines


def _part_lines(name: str, part: Part, max_len: int) -> list[str]:
    lines = [f"  {name}: {part.rows:,} rows"]
    if part.labels:
        shown = sorted(part.labels.items(), key=lambda item: -item[1])
        text = ", ".join(f"{label} {count:,}" for label, count in shown[:12])
        lines.append(f"    labels: {text}" + (f", and {len(shown) - 12} more" if len(shown) > 12 else ""))
    if part.rows:
        lengths = ", ".join(f"{p} % {length_percentile(part.length_histogram, p)}" for p in PERCENTILES)
        share = part.truncated / part.rows
        lines.append(f"    tokens a row: {lengths}; cut to max_len {max_len}: {share:.2%}")
        lines.append(f"    a max_len of {suggested_max_len(part.length_histogram)} keeps 99 % of the rows whole")
    return lines


def write_summary(out: Path, manifest: Manifest) -> None:
    sys.stdout.write("\n".join(summary_lines(out, manifest)) + "\n")
