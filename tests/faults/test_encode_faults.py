"""What `preprocess encode` leaves behind when something goes wrong in the middle of its work."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from encode_runs import DataSet, encode, error_line, flags_of, write_vocab

from preprocess.__main__ import main
from preprocess.split import RowFile

ROOT = Path(__file__).parents[2]
LABELLED = ["--text", "0", "--label", "1"]
ROWS = [f"word {i}\t{i % 3}\n" for i in range(40)]

# Patches the encoder in every process of a run: a text that holds a word of FAULTS does what is told for it.
INJECTION = """
import os, pathlib, time
import tfbert.text.row_encoder as row_encoder

faults = dict(fault.split("=") for fault in os.environ["FAULTS"].split(","))
flags = pathlib.Path(os.environ["FLAGS"])
encode, encode_rows = row_encoder.RowEncoder.encode, row_encoder.RowEncoder.encode_rows


def wait():
    (flags / "waiting").write_text(str(os.getpid()))
    while not (flags / "go").exists():
        time.sleep(0.01)


def fail(what):
    full = OSError(28, "No space left on device")
    raise {"value": ValueError("boom"), "memory": MemoryError("boom"), "full": full}[what]


def check(text):
    for word, what in faults.items():
        if word in text.split():
            os.kill(os.getpid(), 9) if what == "kill" else wait() if what == "wait" else fail(what)


def patched(self, text, text_b=None):
    check(text)
    return encode(self, text, text_b)


def patched_rows(self, texts, texts_b=None):
    for text in texts:
        check(text)
    return encode_rows(self, texts, texts_b)


row_encoder.RowEncoder.encode, row_encoder.RowEncoder.encode_rows = patched, patched_rows
if "start" in faults:
    row_encoder.RowEncoder.__init__ = lambda *_: os.kill(os.getpid(), 9) if faults["start"] == "kill" else fail("value")
"""


class Workshop:
    """A folder with an input, a vocabulary, and runs in processes of their own."""

    def __init__(self, folder: Path, rows: list[str], name: str = "in.tsv"):
        self.folder, self.source = folder, folder / name
        self.write("".join(rows))
        write_vocab(folder)
        self.flags = folder / "flags"
        self.flags.mkdir()
        (self.flags / "sitecustomize.py").write_text(INJECTION, encoding="utf-8")

    def write(self, content: str) -> None:
        data = content.encode()
        self.source.write_bytes(gzip.compress(data) if self.source.suffix == ".gz" else data)

    @property
    def data(self) -> DataSet:
        return DataSet(self.folder / "data")

    @property
    def work(self) -> Path:
        return self.folder / ".data.encode"

    def command(self, *flags: str, out: str = "data") -> list[str]:
        common = [*flags_of(self.folder, out), *LABELLED, "--chunk_bytes", "30"]
        return ["encode", str(self.source), *common, *flags]

    def start(self, *flags: str, faults: str = "", out: str = "data") -> subprocess.Popen[str]:
        injected = {"FAULTS": faults, "FLAGS": str(self.flags)} if faults else {}
        path = os.pathsep.join([str(self.flags)] * bool(faults) + [str(ROOT)])
        return subprocess.Popen(
            [sys.executable, "-m", "preprocess", *self.command(*flags, out=out)],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path} | injected,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *flags: str, faults: str = "", out: str = "data") -> tuple[int, str]:
        """(exit code, stderr)."""
        process = self.start(*flags, faults=faults, out=out)
        return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, error

    def wait_until_waiting(self) -> int:
        """Process id of the worker that stands still."""
        path = self.flags / "waiting"
        deadline = time.monotonic() + 60
        while not path.exists() or not path.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, "no worker came to the row"
            time.sleep(0.01)
        return int(path.read_text(encoding="utf-8"))

    def go(self) -> None:
        (self.flags / "go").touch()

    def interrupt(self, number: signal.Signals, *flags: str) -> tuple[int, str]:
        """A run that gets a signal while a worker is at row 20."""
        process = self.start(*flags, faults="20=wait")
        self.wait_until_waiting()
        process.send_signal(number)
        self.go()
        ended = self.end(process)
        for name in ("go", "waiting"):
            (self.flags / name).unlink()
        return ended


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path, ROWS)


@pytest.fixture
def before(shop: Workshop) -> dict[str, bytes]:
    """A good data set that stands at the final name already."""
    source = shop.folder / "before.tsv"
    source.write_text("before\t1\n", encoding="utf-8")
    return encode(shop.folder, [source], *LABELLED).files


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ------------------------------------------------------------------------------------------------ a worker fails


@pytest.mark.parametrize("name", ["in.tsv", "in.tsv.gz"])
def test_a_killed_worker_ends_the_run(tmp_path: Path, name: str) -> None:
    """Case 017: non-zero, with the lines that were worked on; nothing at the final name."""
    shop = Workshop(tmp_path, ROWS, name)
    code, error = shop.run("--workers", "3", faults="17=kill")
    assert code == 1
    assert "died" in error
    assert f"{name}:" in error
    places = [place.split(":")[-1] for place in error.split("worked on: ")[1].split(". Nothing")[0].split("; ")]
    assert any(first <= 18 <= last for first, last in (map(int, place.split("-")) for place in places))
    assert not shop.data.folder.exists()


def test_a_killed_worker_leaves_the_old_data_set_alone(shop: Workshop, before: dict[str, bytes]) -> None:
    assert shop.run(faults="17=kill")[0] == 1
    assert shop.data.files == before


def test_workers_that_cannot_start_end_the_run(shop: Workshop) -> None:
    code, error = shop.run(faults="start=kill")
    assert (code, "died" in error) == (1, True)
    code, error = shop.run(faults="start=value")
    assert (code, "ValueError: boom" in error) == (1, True)
    assert not shop.data.folder.exists()


@pytest.mark.parametrize("kind, shown", [("value", "ValueError: boom"), ("memory", "MemoryError: boom")])
def test_an_exception_in_a_worker_is_shown_with_its_place(
    shop: Workshop, before: dict[str, bytes], kind: str, shown: str
) -> None:
    """Case 018: the traceback, the file, the lines; nothing is merged."""
    code, error = shop.run("--workers", "3", faults=f"5={kind}")
    assert code == 1
    assert shown in error
    assert "in patched" in error  # the traceback is the worker's
    assert "in.tsv:6: this row" in error
    first, last = map(int, error.split("in.tsv:")[-1].split(".")[0].split("-"))
    assert first <= 6 <= last <= first + 5
    assert shop.data.files == before


def test_the_first_failure_in_file_order_is_shown(shop: Workshop) -> None:
    code, error = shop.run("--workers", "2", faults="30=memory,5=value")
    assert (code, "ValueError: boom" in error, "MemoryError: boom" in error) == (1, True, False)


def test_a_disk_that_a_worker_finds_full_is_one_line(shop: Workshop, before: dict[str, bytes]) -> None:
    code, error = shop.run(faults="5=full")
    assert code == 2
    assert "No space left on device" in error_line(error)
    assert ".data.encode" in error_line(error)
    assert shop.data.files == before


def test_a_run_after_a_failure_starts_clean_or_resumes(shop: Workshop) -> None:
    whole = encode(shop.folder, [shop.source], *LABELLED, "--chunk_bytes", "30", out="whole").files
    for flags in ((), ("--resume",)):
        assert shop.run(faults="25=kill")[0] == 1
        assert shop.run(*flags) == (0, "")
        assert shop.data.files == whole
        assert not shop.work.exists()


# ------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    "number, code, store",
    [(signal.SIGTERM, 143, "jsonl"), (signal.SIGINT, 130, "jsonl"), (signal.SIGTERM, 143, "arrow")],
)
def test_a_stopped_run_resumes_to_the_same_bytes(shop: Workshop, number: signal.Signals, code: int, store: str) -> None:
    flags = ("--val_fraction", "0.2", "--dedup", "--store", store)
    whole = encode(shop.folder, [shop.source], *LABELLED, "--chunk_bytes", "30", *flags, out="whole").files
    ended, error = shop.interrupt(number, *flags)
    assert ended == code
    assert "--resume goes on from it" in error
    assert "Traceback" not in error
    assert not shop.data.folder.exists()
    assert len(list(shop.work.glob("*.stats"))) >= 5
    assert shop.run("--resume", *flags, faults="3=value,10=kill")[0] == 0  # finished parts are not made again
    assert shop.data.files == whole
    assert not shop.work.exists()


def test_a_stopped_run_leaves_the_old_data_set_alone(shop: Workshop, before: dict[str, bytes]) -> None:
    assert shop.interrupt(signal.SIGTERM)[0] == 143
    assert shop.data.files == before


def test_resume_makes_a_cut_part_again(shop: Workshop) -> None:
    """Also one with a changed byte."""
    whole = encode(shop.folder, [shop.source], *LABELLED, "--chunk_bytes", "30", out="whole").files
    assert shop.interrupt(signal.SIGTERM)[0] == 143
    for i, suffix in enumerate((".jsonl", ".rows", ".stats")):
        path = shop.work / f"train-{i:06d}{suffix}"
        path.write_bytes(path.read_bytes()[:-5])
    (shop.work / "train-000003.rows").unlink()
    changes = ((".jsonl", b'"label":0', b'"label":1'), (".stats", b'"rows":', b'"rowz":'))
    for i, (suffix, old, new) in enumerate(changes, 4):
        path = shop.work / f"train-{i:06d}{suffix}"
        content = path.read_bytes()
        path.write_bytes(content.replace(old, new).replace(b'"label":2', b'"label":1'))
        assert path.read_bytes() != content
    assert shop.run("--resume")[0] == 0
    assert shop.data.files == whole


def test_resume_with_nothing_to_resume_is_a_run(shop: Workshop) -> None:
    assert shop.run("--resume") == (0, "")
    assert len(shop.data.rows()) == len(ROWS)


def test_resume_refuses_other_inputs_or_settings(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    labels = shop.folder / "names"
    labels.write_text("0\n1\n2\n", encoding="utf-8")
    flags = ["--labels", str(labels), "--max_len", "20"]
    assert shop.interrupt(signal.SIGTERM, *flags)[0] == 143
    parts = sorted(path.name for path in shop.work.iterdir())
    other = "".join(ROWS).replace("word 1\t", "word x\t")  # as long as before
    for path, content in (
        (shop.source, other.encode()),
        (labels, b"2\n1\n0\n"),
        (shop.folder / "vocab.txt", (shop.folder / "vocab.txt").read_bytes() + b"more\n"),
        (shop.folder / "vocab.txt", None),
    ):
        before = path.read_bytes()
        changed = ["--max_len", "21"] if content is None else []
        path.write_bytes(before if content is None else content)
        assert main(shop.command("--resume", *flags, *changed)) == 2
        assert "other inputs or settings" in error_line(capsys.readouterr().err)
        assert sorted(path.name for path in shop.work.iterdir()) == parts
        path.write_bytes(before)
    shop.write(other)
    assert shop.run(*flags)[0] == 0
    assert len(shop.data.rows()) == len(ROWS)


def test_resume_may_use_other_workers_and_limits(shop: Workshop) -> None:
    shop.write("".join(ROWS) + "bad\n")
    assert shop.interrupt(signal.SIGTERM, "--max_bad_rows", "0.001")[0] == 143
    assert shop.run("--resume", "--workers", "2", "--max_bad_rows", "0.1", faults="3=value")[0] == 0


def test_no_worker_outlives_a_killed_run(shop: Workshop) -> None:
    process = shop.start(faults="20=wait")
    worker = shop.wait_until_waiting()
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert worker in children
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while not all(map(gone, children)):
        assert time.monotonic() < deadline, "a worker lives on"
        time.sleep(0.02)
    assert not shop.data.folder.exists()
    (shop.flags / "waiting").unlink()
    assert shop.run("--resume")[0] == 0  # its lock died with it
    assert len(shop.data.rows()) == len(ROWS)


# --------------------------------------------------------------------------------------------- other runs and files


def test_two_runs_on_one_target_do_not_mix(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 020: the second is refused, the first goes on."""
    first = shop.start(faults="20=wait")
    shop.wait_until_waiting()
    for flags in ((), ("--resume",)):
        assert main(shop.command(*flags)) == 2
        assert "another run is writing it" in error_line(capsys.readouterr().err)
    elsewhere = shop.run(out="other")
    shop.go()
    assert shop.end(first) == (0, "")
    assert elsewhere == (0, "")
    assert shop.data.files == DataSet(shop.folder / "other").files


def test_files_of_others_are_neither_read_nor_deleted(shop: Workshop) -> None:
    """Case 020: in the working folder, beside the target, and in it."""
    stray = {
        name: b"stray\t1\n" * 3 for name in ("data-split-tmp-in_zz", "data-split-tmp-out_zz", "train-000099.jsonl")
    }
    (shop.folder / "data").mkdir()
    for folder in (shop.folder, shop.folder / "data"):
        for name, content in stray.items():
            (folder / name).write_bytes(content)
    assert shop.run() == (0, "")
    assert len(shop.data.rows()) == len(ROWS)
    for folder in (shop.folder, shop.folder / "data"):
        assert {name: (folder / name).read_bytes() for name in stray} == stray


def test_a_folder_of_someone_else_under_the_work_folder_s_name_is_left(
    shop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.work.mkdir()
    (shop.work / "train-000000.jsonl").write_text("mine", encoding="utf-8")
    assert main(shop.command()) == 2
    assert "someone else" in error_line(capsys.readouterr().err)
    assert [path.name for path in shop.work.iterdir()] == ["train-000000.jsonl"]


def test_a_file_put_into_the_work_folder_stays(shop: Workshop) -> None:
    assert shop.interrupt(signal.SIGTERM)[0] == 143
    (shop.work / "notes.txt").write_text("mine", encoding="utf-8")
    for _ in range(2):
        assert shop.run()[0] == 0
        assert (shop.work / "notes.txt").read_text(encoding="utf-8") == "mine"
        assert sorted(path.name for path in shop.work.iterdir()) == ["lock", "notes.txt"]


@pytest.mark.parametrize("name", ["train.jsonl", "val.jsonl", "labels.txt", "rejects.jsonl", "vocab.txt", "test.idx"])
def test_files_under_our_names_without_a_manifest_are_not_overwritten(
    shop: Workshop, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (shop.folder / "data").mkdir()
    (shop.folder / "data" / name).write_text("mine", encoding="utf-8")
    assert main(shop.command()) == 2
    assert name in error_line(capsys.readouterr().err)
    assert shop.data.files == {name: b"mine"}


def test_a_run_that_died_while_publishing_is_resumed(shop: Workshop) -> None:
    """The state that a kill between two renames leaves: no manifest, some new files, the parts."""
    whole = encode(shop.folder, [shop.source], *LABELLED, "--chunk_bytes", "30", out="whole").files
    assert shop.interrupt(signal.SIGTERM)[0] == 143
    (shop.work / "publishing").touch()
    (shop.folder / "data").mkdir()
    (shop.folder / "data" / "train.jsonl").write_bytes(whole["train.jsonl"])
    assert shop.run("--resume")[0] == 0
    assert shop.data.files == whole


@pytest.mark.parametrize("what", ["input", "vocabulary"])
def test_a_file_that_changes_during_the_run_is_noticed(shop: Workshop, what: str) -> None:
    process = shop.start(faults="20=wait")
    shop.wait_until_waiting()
    path = shop.source if what == "input" else shop.folder / "vocab.txt"
    with path.open("ab") as file:
        file.write(b"more\t1\n")
    shop.go()
    code, error = shop.end(process)
    assert code == 2
    assert "changed while it was" in error_line(error)
    assert not shop.data.folder.exists()


# ------------------------------------------------------------------------------------------------------- targets


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "rows, flags",
    [
        *((rows, flags) for rows in (5000, 40_000) for flags in ([], ["--dedup", "--val_fraction", "0.1"])),
        *((rows, ["--store", "arrow"]) for rows in (9000, 40_000)),
    ],
)
def test_a_full_disk_is_an_error_and_publishes_nothing(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], rows: int, flags: list[str]
) -> None:
    """Case 024: full while the parts are written, or while they are merged."""
    before = encode(tmp_path, "before\t1\n", *LABELLED, out="small/data").files
    content = "".join(f"{i} some words of text\t{i % 3}\n" for i in range(rows))
    (tmp_path / "in.tsv").write_text(content, encoding="utf-8")
    assert main(["encode", str(tmp_path / "in.tsv"), *flags_of(tmp_path, "small/data"), *LABELLED, *flags]) == 2
    line = error_line(capsys.readouterr().err)
    assert "No space left on device" in line
    assert "small" in line
    assert DataSet(small_disk / "data").files == before


def test_a_mapped_file_takes_its_space_when_it_is_made(small_disk: Path) -> None:
    """Writing to a mapped hole on a full disk would kill the process without a word."""
    with pytest.raises(OSError, match="No space left on device"):
        RowFile(small_disk / "rows", 2 << 20, "u1")


def test_a_target_on_a_disk_of_its_own(tmp_path: Path, small_disk: Path) -> None:
    """Files get their names by renaming, which works only within a disk."""
    data = encode(tmp_path, "a\t1\n", *LABELLED, out="small")
    assert data.texts() == ["a"]
    assert set(data.files) == {"train.jsonl", "train.idx", "rejects.jsonl", "labels.txt", "vocab.txt", "manifest.json"}


def test_a_target_that_cannot_be_written(tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 024."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    encode(tmp_path, "a\t1\n", *LABELLED, out="small/data", code=2)
    assert "Read-only file system" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize("out", ["none/data", "file", "file/data"])
def test_a_target_that_cannot_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str) -> None:
    """Case 024: missing parent, a file."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    encode(tmp_path, "a\t1\n", *LABELLED, out=out, code=2)
    assert "--out" in error_line(capsys.readouterr().err)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("what", ["missing", "folder", "pipe"])
def test_an_input_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    path = tmp_path / "in.tsv"
    if what == "folder":
        path.mkdir()
    if what == "pipe":
        os.mkfifo(path)
    data = encode(tmp_path, [path], *LABELLED, code=2)
    assert "in.tsv" in error_line(capsys.readouterr().err)
    assert not data.folder.exists()


@pytest.mark.parametrize("content", [None, b"\xff\n", b"[PAD]\n[UNK]\n"])
def test_a_vocabulary_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "other.txt"
    if content is not None:
        path.write_bytes(content)
    encode(tmp_path, "a\t1\n", *LABELLED, "--vocab", str(path), code=2)
    assert "other.txt" in error_line(capsys.readouterr().err)
