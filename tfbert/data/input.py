"""An input of prediction: read like the data set of the run, as far as the flags and the file do not say otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfbert.data.columns import Roles, split_names
from tfbert.data.manifest import Manifest
from tfbert.data.source import Source, open_source
from tfbert.errors import ConfigError

_TELLING_SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".ndjson")


@dataclass(frozen=True)
class Columns:
    """How to read an input; None takes what the data set of the run was read with.

    Attributes:
        text, text_b, label: columns.
        keep: columns to copy into the output.
        format, names, header: as in `preprocess encode`.
    """

    text: str | None = None
    text_b: str | None = None
    label: str | None = None
    keep: tuple[str, ...] = ()
    format: str | None = None
    names: tuple[str, ...] | None = None
    header: bool | None = None


def open_input(
    manifest: Manifest, path: Path | str, columns: Columns, with_label: bool = False
) -> tuple[Source, Roles]:
    """Opens a file of rows.

    Args:
        manifest: of the data set that the run was trained on.
        path: the file.
        columns: what the flags say.
        with_label: read the label as well, and leave out what the filters of the data set leave out.

    Raises:
        TfbertError: the file cannot be read, lacks a column, or is not what the run was trained on.
    """
    trained = Roles.from_dict(manifest.columns["roles"])
    roles = Roles(
        columns.text or trained.text,
        columns.text_b or trained.text_b,
        (columns.label or trained.label) if with_label else None,
        keep=columns.keep,
        filters=trained.filters if with_label else (),
    )
    if roles.text_b is not None and trained.text_b is None:
        raise ConfigError("The run was trained on single texts. Received: --text_b. Leave it out.")
    names = columns.names or _known_names(manifest, columns)

    def open_with(header: bool | None) -> Source:
        return open_source(
            path,
            roles.wanted,
            format=columns.format or _format_for(manifest, Path(path)),
            columns=names,
            header=header,
            replace_bad_bytes=manifest.columns["replace_bad_bytes"],
            nullable=roles.nullable,
        )

    source = open_with(columns.header)
    like_trained = columns.header is None and not columns.text and not columns.names
    if like_trained and manifest.columns["header"] and source.format in ("tsv", "csv"):
        source = open_with(True)
    if columns.names is None and names is not None:  # the file may lack columns behind the text
        source = replace(source, num_fields=None)
    return source, roles


def _known_names(manifest: Manifest, columns: Columns) -> Sequence[str] | None:
    """Column names of the data set, for files without a header, unless the flags speak of other columns."""
    names = split_names(manifest.columns["columns"])
    chosen = [name for name in (columns.text, columns.text_b, columns.label, *columns.keep) if name is not None]
    fits = all(name in names or name.removeprefix("-").isdigit() for name in chosen)
    return names if names and fits and not columns.header else None


def _format_for(manifest: Manifest, path: Path) -> str:
    """The data set's format, unless the file's own name tells of another."""
    trained = {_suffix(Path(entry["name"])) for group in manifest.inputs.values() for entry in group}
    tells = _suffix(path) in _TELLING_SUFFIXES and _suffix(path) not in trained
    return "auto" if tells else str(manifest.columns["format"])


def _suffix(path: Path) -> str:
    """Ending of the name that tells the format, without that of the compression."""
    return Path(path.stem if path.suffix.lower() in (".gz", ".zst") else path.name).suffix.lower()
