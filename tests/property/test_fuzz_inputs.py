"""Hostile and damaged inputs, vocabularies, label files, settings and data sets: refused in one line, or read right.

`FUZZ_ROUNDS` and `FUZZ_SEED` make them longer and other ones; `make soak` does.
"""

import gzip
import json
import random
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from encode_runs import DataSet as Encoded
from encode_runs import InlineExecutor, encode, flags_of, write_vocab
from fuzzing import Outcome, command, cut, damaged, hostile, rounds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preprocess.__main__ import main
from tfbert.data.dataset import DataSet
from tfbert.data.labels import load_label_map
from tfbert.data.record import Record, dump, parse
from tfbert.data.store import open_store
from tfbert.errors import DataError, TfbertError
from tfbert.text.wordpiece import Vocabulary

BOM = b"\xef\xbb\xbf"
TABLE = b"".join(b"word %d\tab \xe6\xa0\x87\t%d\n" % (i, i % 3) for i in range(20))
GOOD = {
    "tsv": TABLE,
    "csv": TABLE.replace(b"\t", b","),
    "txt": TABLE.replace(b"\t", b" "),
    "jsonl": b"".join(b'{"text": "word %d", "label": "%d"}\n' % (i, i % 3) for i in range(20)),
}


def run(folder: Path, *words: object) -> Outcome:
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        return command(main, "encode", *words, *flags_of(folder))


def flags_for(draw: random.Random, kind: str) -> list[str]:
    """What an input of a kind may be read with."""
    flags = ["--text", "text" if kind == "jsonl" else "0"]
    if kind != "txt" and draw.random() < 0.8:
        flags += ["--label", "label" if kind == "jsonl" else draw.choice(["-1", "1", "2"])]
        flags += ["--task", draw.choice(["classify", "multilabel", "regression"])]
    if kind in ("tsv", "csv") and draw.random() < 0.2:
        flags += ["--header"]
    for words in (["--dedup"], ["--val_fraction", "0.3"], ["--replace_bad_bytes"], ["--clean", "standard"]):
        flags += words if draw.random() < 0.25 else []
    return flags + ["--chunk_bytes", draw.choice(["300", "20000", "1000000"])]


def packed(draw: random.Random, content: bytes) -> tuple[str, bytes]:
    """The content as it is, or compressed, and in half of the cases then damaged; with the ending of its name."""
    kind = draw.choice(["", "", "", ".gz", ".zst"])
    if kind == "":
        return kind, content
    if kind == ".gz":
        data = gzip.compress(content)
    else:
        data = pytest.importorskip("pyarrow").Codec("zstd").compress(content, asbytes=True)
    return kind, damaged(draw, data) if draw.random() < 0.5 else data


@pytest.mark.parametrize("seed", rounds(60))
def test_inputs(tmp_path: Path, seed: int) -> None:
    """Lines = kept + rejected, the lines are those of the file, and nothing is published where the file is refused."""
    draw = random.Random(seed)
    kind = draw.choice(sorted(GOOD))
    content = hostile(draw) if draw.random() < 0.5 else damaged(draw, GOOD[kind])
    ending, data = packed(draw, content)
    path = tmp_path / f"in.{kind}{ending}"
    path.write_bytes(data)
    flags = flags_for(draw, kind)
    outcome = run(tmp_path, path, *flags)
    outcome.check(path.name)
    if outcome.code:
        assert not (tmp_path / "data").exists()
    else:
        encoded = Encoded(tmp_path / "data")
        encoded.check_counts()
        if kind != "csv" and not ending and "--header" not in flags:
            rest = content.removeprefix(BOM)
            lines = rest.count(b"\n") + (not rest.endswith(b"\n") and rest != b"")
            assert encoded.manifest["read"]["train"]["lines"] == lines, cut(content)
    assert not list(tmp_path.glob(".data*"))


@pytest.mark.parametrize("seed", rounds(20))
@pytest.mark.parametrize("what", ["vocab.txt", "labels.txt", "labels.json", "settings.yaml"])
def test_files_beside_the_input(tmp_path: Path, what: str, seed: int) -> None:
    draw = random.Random(seed)
    good = {
        "vocab.txt": write_vocab(tmp_path).read_bytes(),
        "labels.txt": b"0\tzero\n1\tone\n2\ttwo\n",
        "labels.json": b'{"0": 0, "1": 1, "2": 2}',
        "settings.yaml": b"label: 2\nval_fraction: 0.2\nmax_len: 16\nfilter: [0!=b]\ncased: false\nseed: 3\n",
    }[what]
    bad = hostile(draw) if draw.random() < 0.3 else damaged(draw, good)
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / what
    path.write_bytes(bad)
    (tmp_path / "in.tsv").write_bytes(TABLE)
    flag = {"vocab.txt": "--vocab", "settings.yaml": "--config"}.get(what, "--labels")
    label = [] if what == "settings.yaml" else ["--label", "2"]
    words = [tmp_path / "in.tsv", "--text", "0", *label, flag, path]
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        outcome = command(main, "encode", *flags_of(tmp_path), *words)
    outcome.check(what, "--", "in.tsv", "label", "names", "must")
    if outcome.code == 0:
        Encoded(tmp_path / "data").check_counts()
    assert {p.name for p in tmp_path.iterdir()} <= {"in.tsv", "other", "vocab.txt", "data"}, cut(bad)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a data set."""
    folder = tmp_path_factory.mktemp("whole")
    content = "".join(f"word {i} ab\t{i % 3}\n" for i in range(40))
    data = encode(folder, content, "--text", "0", "--label", "1", "--val_fraction", "0.2")
    return data.files


def all_rows(folder: Path) -> dict[str, object]:
    """All that training takes from a data set."""
    data = DataSet.open(folder)
    data.verify()
    found: dict[str, object] = {}
    for part in data.parts:
        store = data.store(part)
        try:
            names = data.label_names(store)
            store.check_labels(len(names))
            found[part] = names, store.read(range(len(store))), store.lengths.tolist(), store.labels.tolist()
        finally:
            store.close()
    return found


@pytest.mark.parametrize("seed", rounds(80))
def test_data_sets(whole: dict[str, bytes], tmp_path: Path, seed: int) -> None:
    """A data set that opens has exactly the rows that were written; `inspect` shows it or refuses it."""
    draw = random.Random(seed)
    good, changed = tmp_path / "good", tmp_path / "changed"
    for folder in (good, changed):
        folder.mkdir()
        for name, content in whole.items():
            (folder / name).write_bytes(content)
    name = draw.choice(sorted(whole))
    (changed / name).write_bytes(damaged(draw, whole[name]))
    try:
        rows = all_rows(changed)
    except TfbertError as error:
        assert str(changed) in str(error)
        assert "\n" not in str(error)
    else:
        assert name != "manifest.json" or rows.keys() <= {"train", "val", "test"}
        wanted = all_rows(good)
        assert rows == {part: wanted[part] for part in rows}
    command(main, "inspect", changed, "--no_charts").check(str(changed), "--part")


@pytest.mark.parametrize("seed", rounds(60))
def test_bare_files(tmp_path: Path, seed: int) -> None:
    """Rows of token ids that someone else wrote: indexed and read, or refused with their line."""
    draw = random.Random(seed)
    good = b"".join(b'{"label": %d, "wordids": [2, %d, 3]}\n' % (i % 2, i + 5) for i in range(20))
    content = damaged(draw, good) if draw.random() < 0.8 else hostile(draw)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    try:
        store = open_store(path)
        try:
            records = store.read(range(len(store)))
            columns = store.columns(range(len(store))) if len(store) else None
        finally:
            store.close()
    except DataError as error:
        assert str(path) in str(error)
        return
    lines = [line for line in content.removeprefix(BOM).split(b"\n") if line.strip()]
    assert len(records) == len(lines)
    assert columns is None or columns.token_ids.flat().tolist() == [i for record in records for i in record.token_ids]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={n: JSON for n in ("wordids", "label", "weight", "segmentids", "type", "keep")},  # noqa: C420
    )
)
def test_rows_of_any_json(row: dict[str, object]) -> None:
    """A row is refused, or comes back as it was read."""
    try:
        record = parse(json.dumps(row).encode())
    except DataError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(record, Record)
    assert parse(dump(record)) == record


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from(["labels.txt", "labels.json", "labels.jsonl"]))
def test_label_files_of_any_bytes(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    try:
        labels = load_label_map(path)
    except DataError as error:
        assert str(path) in str(error)
        return
    assert labels.names
    assert set(labels.ids.values()) == set(range(len(labels.names)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_vocabularies_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + content)
    try:
        vocabulary = Vocabulary.load(path)
    except DataError as error:
        assert str(path) in str(error)
        return
    assert len(vocabulary) == 5 + content.count(b"\n") + (not content.endswith(b"\n") and content != b"")


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "..", "nul\0", "con", "~root"])
def test_names_in_files_never_become_paths(tmp_path: Path, name: str) -> None:
    """Labels, types, kept columns and their names are text wherever they stand."""
    folder = tmp_path / "inner"
    folder.mkdir()
    content = f"text\tlabel\t{name}\na\t{name}\tx\nb\tc\t{name}\n" if "\0" not in name else f"text\tlabel\n{name}\tc\n"
    keep = [] if "\0" in name else ["--keep", name, "--type", name]
    encode(folder, content, "--text", "text", "--label", "label", "--val_fraction", "0.3", *keep)
    assert {path.name for path in tmp_path.iterdir()} == {"inner"}
    assert {path.name for path in folder.iterdir()} == {"in.tsv", "vocab.txt", "data"}
    shutil.rmtree(folder)
