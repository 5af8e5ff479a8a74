"""What a process takes does not grow with the rows: measured on n rows and on 3n."""

import subprocess
import sys
from pathlib import Path

from encode_runs import write_vocab

ROOT = Path(__file__).parents[2]

READ = """
import sys
from pathlib import Path
from tfbert.data.feed import FeedSettings, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.store import open_store

def own():  # what is mapped from the file is shared with other processes, and given back when memory is short
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])

store = open_store(Path(sys.argv[1]))
plan = EpochPlan(store.lengths, 64, window=1000, seed=0, epoch=0)
before, most, rows = own(), 0, 0
for batch in plan_batches(store, plan, FeedSettings(0, 256, task="classify", num_classes=2), 2, worker=(1, 2)):
    most, rows = max(most, own()), rows + int((batch["weights"] > 0).sum())
assert rows == len(store) // 2, rows
print(most - before)
"""

PREPARE = """
import resource, sys
from pathlib import Path
from preprocess import corpus_documents
from preprocess.__main__ import main
corpus_documents.BUCKET_BYTES = 1 << 20
code = main(sys.argv[1:])
# not getrusage of this process: that counts what the one was that became it
line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(line.split()[1], resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def measured(script: str, *words: Path | str) -> list[int]:
    """The numbers, in KiB, of the last line that a script writes."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.splitlines()[-1].split()]


def test_a_worker_maps_the_rows_and_reads_its_share(tmp_path: Path) -> None:
    """Case 149: of two workers each holds a window's rows at most, not the data set."""
    path, taken = tmp_path / "rows.jsonl", []
    row = b'{"label":1,"wordids":[%s]}\n' % b",".join([b"12345"] * 200)
    for rows in (8_000, 24_000):
        path.write_bytes(row * rows)
        taken += measured(READ, path)
    assert taken[1] < taken[0] + len(row) * 16_000 / 1024 / 10  # a tenth of the rows that came


def test_a_corpus_of_any_size(tmp_path: Path) -> None:
    """Case 165: the processes that prepare it take what a few chunks and a bucket of shuffled rows take."""
    vocab, text, taken = write_vocab(tmp_path), tmp_path / "in.txt", []
    flags = ["--workers", "2", "--chunk_bytes", "100000", "--max_len", "64", "--val_fraction", "0.2"]
    for documents in (250, 750):
        with text.open("w", encoding="utf-8") as file:
            for i in range(documents):
                file.write((f"{i} " + "abc def ghi " * 13 + ".\n") * 20 + "\n")
        taken.append(measured(PREPARE, "corpus", text, "--vocab", vocab, "--out", tmp_path / "data", *flags))
    rows = sum((tmp_path / f"data/{part}.jsonl").stat().st_size for part in ("train", "val")) / 1024
    for small, large in zip(*taken, strict=True):  # this process, the largest of its workers
        assert large < small + rows / 4
