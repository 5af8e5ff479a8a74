"""A look at a data set: its manifest in words, sample rows as text, and charts of lengths and labels."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from preprocess.charts import check_matplotlib, draw_labels, draw_lengths, draw_values
from preprocess.summary import manifest_lines, summary_lines
from tfbert.cli import option
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import Manifest, Part, file_checksum
from tfbert.data.record import Record
from tfbert.data.store import SUFFIXES, RowStore, open_store
from tfbert.errors import ConfigError, DataError
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

MAX_SAMPLED = 20_000  # rows that are read for the labels of a regression, which no manifest counts


@dataclass(frozen=True)
class InspectConfig:
    """Show what is in a data set: numbers, sample rows, charts."""

    data: str = option(positional=True)
    """The data-set folder."""
    part: str = "train"
    """Part whose rows and charts are shown: train, val or test."""
    rows: int = 5
    """Sample rows, evenly spread over the part."""
    out: str | None = None
    """Folder for the charts. Default: the data-set folder."""
    charts: bool = True
    """Draw PART_lengths.png and PART_labels.png."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ConfigError(f"--rows must be at least 0. Received: {self.rows}.")


def inspect(config: InspectConfig) -> None:
    """Prints the numbers and rows, and draws the charts."""
    data = Path(config.data)
    manifest = Manifest.load(data / MANIFEST)
    if config.part not in manifest.parts:
        raise DataError(f"{data}: --part is one of {', '.join(manifest.parts)}. Received: {config.part}.")
    out = Path(config.out) if config.out is not None else data
    if config.charts:
        check_matplotlib()
        if not out.is_dir():
            raise DataError(f"--out names an existing folder. Received: {out}.")
    vocabulary = _vocabulary(data, manifest)
    store = open_store(data / f"{config.part}{SUFFIXES[manifest.store]}")
    try:
        if len(store) != manifest.parts[config.part].rows:
            raise DataError(
                f"{store.path}: the file has the rows of its manifest. Received: {len(store):,} rows, "
                f"{manifest.parts[config.part].rows:,} in the manifest. Encode the data again."
            )
        first, *rest = summary_lines(data, manifest)
        lines = [first, *manifest_lines(manifest), *rest]
        lines += _sample_lines(store, config, manifest, vocabulary)
        if config.charts:
            lines += _draw(store, config.part, manifest, out)
    finally:
        store.close()
    sys.stdout.write("\n".join(lines) + "\n")


def _vocabulary(data: Path, manifest: Manifest) -> Vocabulary:
    path = data / "vocab.txt"
    vocabulary = Vocabulary.load(path)
    if file_checksum(path) != manifest.vocab_checksum:
        raise DataError(f"{path}: not the vocabulary that the data set was encoded with. Encode the data again.")
    return vocabulary


def _spread(rows: int, wanted: int) -> list[int]:
    """Up to `wanted` row numbers from first to last, evenly spread."""
    if wanted >= rows:
        return list(range(rows))
    if wanted == 1:
        return [rows // 2]
    return [i * (rows - 1) // (wanted - 1) for i in range(wanted)]


def _sample_lines(store: RowStore, config: InspectConfig, manifest: Manifest, vocabulary: Vocabulary) -> list[str]:
    numbers = _spread(len(store), config.rows)
    if not numbers:
        return []
    decode = WordPieceTokenizer(vocabulary, manifest.encoding["cased"]).decode
    lines = [f"  rows of {config.part}:"]
    for number, record in zip(numbers, store.read(numbers), strict=True):
        if max(record.token_ids) >= len(vocabulary):
            raise DataError(
                f"{store.place(number)}: a token id is a line of vocab.txt, less than {len(vocabulary)}. Received: "
                f"{max(record.token_ids)}."
            )
        lines.append(f"    row {number:,}: " + ", ".join(_facts(record, manifest.label_names)))
        lines.append(f"      {decode(record.token_ids)}")
        if record.words is not None:
            lines.append(f"      words: {_joined_words(record, vocabulary)}")
    return lines


def _joined_words(record: Record, vocabulary: Vocabulary) -> str:
    """The tokens with blanks between words alone: what is masked together."""
    tokens = [vocabulary.tokens[i].removeprefix("##") for i in record.token_ids]
    begins = record.words or ""
    return "".join((" " if flag == "1" else "") + token for token, flag in zip(tokens, begins, strict=True)).strip()


def _facts(record: Record, names: Sequence[str]) -> list[str]:
    facts = []
    if isinstance(record.label, list):
        facts.append("labels " + (", ".join(_label(label, names) for label in record.label) or "none"))
    elif isinstance(record.label, int) and names:
        facts.append("label " + _label(record.label, names))
    elif record.label is not None:
        facts.append(f"label {record.label}")
    facts.append(f"{len(record.token_ids)} tokens")
    if record.weight != 1.0:
        facts.append(f"weight {record.weight:g}")
    if record.type is not None:
        facts.append(f"type {record.type}")
    if record.keep is not None:
        facts.append(f"keep {orjson.dumps(record.keep).decode()}")
    return facts


def _label(label: int, names: Sequence[str]) -> str:
    if not 0 <= label < len(names):
        return f"{label} (not a class)"
    return names[label] if names[label] == str(label) else f"{names[label]} (id {label})"


def _draw(store: RowStore, name: str, manifest: Manifest, out: Path) -> list[str]:
    part = manifest.parts[name]
    if not part.rows:
        return [f"  no charts: {name} has no rows"]
    lengths = out / f"{name}_lengths.png"
    title = f"{name}: tokens a row before truncation, {part.rows:,} rows"
    draw_lengths(lengths, part.length_histogram, manifest.encoding["max_len"], title)
    lines = [f"  chart of the lengths: {lengths}"]
    if manifest.task is not None:
        labels = out / f"{name}_labels.png"
        lines.append(f"  chart of the labels: {labels}")
        if not _draw_labels(labels, store, name, part, manifest):
            lines.append("    no installed font shows the label names, so it has their ids; labels.txt has the names")
    return lines


def _draw_labels(path: Path, store: RowStore, name: str, part: Part, manifest: Manifest) -> bool:
    if manifest.task != "regression":
        return draw_labels(path, part.labels, part.rows, f"{name}: {len(part.labels):,} labels, {part.rows:,} rows")
    sample = _spread(part.rows, MAX_SAMPLED)
    title = f"{name}: labels of {len(sample):,} rows"
    if len(sample) < part.rows:
        title += f", evenly spread over {part.rows:,}"
    draw_values(path, [float(r.label) for r in store.read(sample) if isinstance(r.label, (int, float))], title)
    return True
