"""A data set in words: what was read, kept and rejected, the labels, the lengths, a max_len to choose."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfbert.data.manifest import Manifest, Part

LISTED = ("documents", "sentences")  # of a corpus, in the rejects
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
    corpus = manifest.corpus
    if corpus is not None:
        lines += _corpus_lines(corpus)
    for name, part in manifest.parts.items():
        lines += _part_lines(name, part, manifest.encoding["max_len"], corpus is not None)
    if manifest.conflicts:
        lines.append(f"  texts with several labels: {manifest.conflicts:,}")
    lines += [f"  rows of {name} whose text is in train: {count:,}" for name, count in manifest.leaked.items()]
    unused = [read["rejected"] for read in manifest.read.values()]
    if corpus is not None:
        unused += [{name for name in corpus["read"][what]["dropped"] if name != "no pair"} for what in LISTED]
    if any(unused):
        lines.append(f"  rejected rows: {out / 'rejects.jsonl'}")
    return lines


def manifest_lines(manifest: Manifest) -> list[str]:
    """How the data set was made: inputs, columns, encoding, labels, split."""
    lines = []
    for group, entries in manifest.inputs.items():
        lines += [f"  {group} from {e['name']}: {e['lines']:,} lines, {e['bytes']:,} bytes" for e in entries]
    columns = manifest.columns
    roles = [f"{role} {_words(column)}" for role, column in columns["roles"].items() if column not in (None, [], ())]
    header = {None: "auto", True: "yes", False: "no"}[columns["header"]]
    named = f"; columns {columns['columns']}" if columns["columns"] else ""
    if manifest.corpus is not None:
        lines += _packing_lines(manifest.corpus)
    else:
        lines.append(f"  read as: format {columns['format']}; header line: {header}{named}; {'; '.join(roles)}")
    encoding = manifest.encoding
    case = "cased" if encoding["cased"] else "uncased"
    texts = "pairs of texts" if encoding["pair"] else "single texts"
    lines.append(
        f"  encoded as: {encoding['tokenizer']}, {case}; {texts}; max_len {encoding['max_len']}; vocabulary of "
        f"{manifest.vocab_size:,} tokens ({manifest.vocab_checksum})"
    )
    lines.append(f"  cleaning: {', '.join(encoding['clean']) or 'none'}")
    if manifest.corpus is not None:
        pass  # whoever trains on it decides
    elif manifest.task is None:
        lines.append("  task: none, there are no labels")
    else:
        lines.append(
            f"  task: {f'{manifest.task_name}, ' if manifest.task_name else ''}{manifest.task}"
            + (f", {len(manifest.label_names):,} labels" if manifest.label_names else "")
        )
    if manifest.split:
        split = manifest.split
        lines.append(f"  validation split: {split['fraction']:.2%} by {split['rule']}; seed {split['seed']}")
    what = "rows with" if manifest.corpus is None else "documents with"
    lines.append(f"  {what} a text that occurred before: " + ("dropped" if manifest.dedup else "kept"))
    return lines


def _packing_lines(corpus: Mapping[str, Any]) -> list[str]:
    words = corpus["whole_words"] + (" with a user dictionary" if corpus["user_dict"] else "")
    return [
        f"  made for pretraining: documents end at: {corpus['documents']}; sentences end at: {corpus['sentences']}; "
        f"pairs: {corpus['pairs']}; words: {words}",
        f"  rows filled up to a random length: {corpus['short_fraction']:.0%}; shuffled with seed {corpus['seed']}",
    ]


def _words(column: Any) -> str:
    """A column, several columns, or filters, as the command line has them."""
    if isinstance(column, str):
        return column
    return ",".join(item if isinstance(item, str) else "!=".join(item) for item in column)


def _corpus_lines(corpus: Mapping[str, Any]) -> list[str]:
    lines = []
    for what, counts in corpus["read"].items():
        dropped = sum(counts["dropped"].values())
        lines.append(f"  {what}: {counts['read']:,} read = {counts['kept']:,} kept + {dropped:,} dropped")
        lines += [f"    dropped, {reason}: {count:,}" for reason, count in counts["dropped"].items()]
    if corpus["borrowed_tokens"]:
        lines.append(f"  tokens of random second texts, from other documents: {corpus['borrowed_tokens']:,}")
    return lines


def _part_lines(name: str, part: Part, max_len: int, packed: bool = False) -> list[str]:
    lines = [f"  {name}: {part.rows:,} rows"]
    if part.labels:
        shown = sorted(part.labels.items(), key=lambda item: -item[1])
        text = ", ".join(f"{label} {count:,}" for label, count in shown[:12])
        lines.append(f"    labels: {text}" + (f", and {len(shown) - 12} more" if len(shown) > 12 else ""))
    if part.rows:
        lengths = ", ".join(f"{p} % {length_percentile(part.length_histogram, p)}" for p in PERCENTILES)
        if packed:
            return [*lines, f"    tokens a row: {lengths}; max_len {max_len}"]
        share = part.truncated / part.rows
        lines.append(f"    tokens a row: {lengths}; cut to max_len {max_len}: {share:.2%}")
        lines.append(f"    a max_len of {suggested_max_len(part.length_histogram)} keeps 99 % of the rows whole")
    return lines


def write_summary(out: Path, manifest: Manifest) -> None:
    sys.stdout.write("\n".join(summary_lines(out, manifest)) + "\n")
