"""Faults at random, for as long as one likes: `make soak`, with `MINUTES=` and `SEED=`.

Encode, train and predict jobs run over and over on small data. Each round breaks one of them once or several times:
killed, told to stop, a worker shot, the disk full, a finished part cut, a saved state damaged, an index changed, files
of others in the way, a second run beside it, other inputs than before. Then the same command runs until it ends, and
what it leaves must equal, byte for byte, what an undisturbed run left: data set, weights, saved state, log,
predictions.

Jobs that need TensorFlow are forked from one process that has imported it, so a round takes seconds.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from classify_runs import SHAPE, table  # noqa: E402
from encode_runs import TOKENS, write_vocab  # noqa: E402

from tfbert.loop.state import read_state  # noqa: E402

HANGS_S = 300.0  # after this a job that takes seconds is taken to hang
MOST_ATTEMPTS = 12
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
STOPPED = {-signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT}

FORKS = """
import json, os, signal, sys, traceback
from tfbert.cli import import_tensorflow
import_tensorflow()
import tfbert.predictor, tfbert.recipes.classify
import predict, train

scripts = {"train.py": train.main, "predict.py": predict.main}
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(0)
    code = 1
    try:
        code = scripts[job["words"][0]](job["words"][1:])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""


class Difference(Exception):
    """A promise that was not kept."""


class Forks:
    """A process that has imported TensorFlow and forks one for every job."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, **job: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Attempt:
    """A command under way."""

    pid: int
    log: Path
    wait: Callable[[], int]

    def finish(self) -> int:
        """Waits for its end; a job that hangs is killed and reported."""
        killer = subprocess.Popen(  # the wait may be a read that nothing else ends
            ["sh", "-c", f"sleep {HANGS_S}; kill -9 {self.pid}"],  # noqa: S607
            start_new_session=True,
        )
        started = time.monotonic()
        try:
            code = self.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(killer.pid, signal.SIGKILL)
            killer.wait()
        if time.monotonic() - started >= HANGS_S:
            raise Difference(f"a job hung\n{self.output}")
        return code

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def alive(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass
class Bench:
    """The folder of the soak, what it draws from, and its log."""

    folder: Path
    draw: random.Random
    log: BinaryIO
    forks: Forks
    disks: bool
    seed: int = 0
    round: int = 0
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)  # that an undisturbed job takes
    _logs: int = 0

    def write(self, **entry: Any) -> None:
        self.log.write(json.dumps({"round": self.round} | entry).encode() + b"\n")
        self.log.flush()

    def note(self, job: str, fault: str, **more: Any) -> None:
        """A fault took place."""
        self.faults[job, fault] += 1
        self.write(job=job, fault=fault, **more)

    def start(self, words: Sequence[str]) -> Attempt:
        self._logs += 1
        log = self.folder / f"log-{self._logs % 20}.txt"
        if words[0].endswith(".py"):
            pid = self.forks.ask(words=list(words), log=str(log))
            return Attempt(pid, log, lambda: self.forks.ask(wait=pid))
        with log.open("wb") as file:
            process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=file, stderr=file)
        return Attempt(process.pid, log, process.wait)

    def run(self, words: Sequence[str], code: int = 0, message: str = "") -> None:
        """A command to its end, which must be the given one."""
        attempt = self.start(words)
        found = attempt.finish()
        if found != code or message not in attempt.output:
            raise Difference(f"exit code {found}, wanted {code} with {message!r}: {words}\n{attempt.output}")


class Job:
    """One kind of job: its command, its result, and what can be done to it."""

    name: str

    def __init__(self, bench: Bench, folder: Path):
        self.bench, self.folder = bench, folder

    def words(self) -> list[str]:
        raise NotImplementedError

    def result(self) -> dict[str, str]:
        """What the job left: a name and a digest for everything that must be the same."""
        raise NotImplementedError

    def clear(self) -> None:
        """Removes what the job left."""
        raise NotImplementedError

    def between(self) -> dict[str, Callable[[], bool]]:
        """Faults that can happen while the job is not running; each tells whether there was anything to break."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ faults of all

    def stop(self) -> bool:
        """Runs the command and ends it by a signal at a random moment; tells whether it was ended."""
        bench = self.bench
        name = bench.draw.choice([*SIGNALS, "SIGKILL"])
        share = bench.draw.uniform(0.05, 0.9)
        attempt = bench.start(self.words())
        end = time.monotonic() + share * bench.seconds[self.name]
        while time.monotonic() < end and attempt.alive():
            time.sleep(0.002)
        attempt.send(SIGNALS[name])
        code = attempt.finish()
        if code == 0:
            return False
        if code in (1, -SIGNALS[name]) and code not in STOPPED and ", in main" not in attempt.output:
            return True  # Python itself was starting, or still importing
        if code not in STOPPED or "Traceback" in attempt.output:
            raise Difference(f"exit code {code} after {name}: {self.words()}\n{attempt.output}")
        bench.note(self.name, name, share=round(share, 3), exit=code)
        return True

    def beside(self) -> bool:
        """A second run of the same command while the first one works: one of them is refused, the other unharmed."""
        first = self.bench.start(self.words())
        time.sleep(self.bench.draw.random() * 0.7 * self.bench.seconds[self.name])
        second = self.bench.start(self.words())
        codes = [attempt.finish() for attempt in (first, second)]
        if 0 not in codes or not set(codes) <= {0, 2}:
            raise Difference(f"exit codes {codes} of two runs at once\n{first.output}\n{second.output}")
        if 2 in codes:
            self.bench.note(self.name, "two runs at once", exit=codes)
        return True

    def full_disk(self) -> bool:
        """The folder of the output is a disk that fills up; then there is room."""
        if not self.bench.disks:
            return False
        size = self.bench.draw.choice(self.disk_sizes())
        self.clear()
        self.folder.mkdir(exist_ok=True)
        bench = self.bench
        _mount(self.folder, size)
        try:
            attempt = bench.start(self.words())
            code = attempt.finish()
            if code not in (0, 2) or "Traceback" in attempt.output:
                raise Difference(f"exit code {code} on a full disk of {size}\n{attempt.output}")
            if code == 2 and "No space left on device" not in attempt.output:
                raise Difference(f"exit code {code} on a full disk of {size}\n{attempt.output}")
            full = "No space left on device" in attempt.output
            kept = _copied(self.folder)
        finally:
            subprocess.run(["umount", str(self.folder)], check=True)
        _put_back(self.folder, kept)
        if full:
            self.bench.note(self.name, "full disk", size=size, exit=code)
        return full

    def disk_sizes(self) -> list[str]:
        raise NotImplementedError

    def finish(self) -> None:
        """The same command until it ends, and the comparison."""
        self.bench.run(self.words())

    def check(self, wanted: dict[str, str]) -> None:
        found = self.result()
        differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        if differing:
            raise Difference(f"{self.name}: not as undisturbed: {differing} in {self.folder}")


def _mount(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    """Whether small disks can be made here: that needs root."""
    place = folder / "disk"
    place.mkdir()
    try:
        _mount(place, "64k")
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


def _copied(folder: Path) -> dict[str, bytes | None]:
    """Files with their content, folders with None, by relative name."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def _put_back(folder: Path, content: dict[str, bytes | None]) -> None:
    for name, data in content.items():
        if data is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).write_bytes(data)


def digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def damage(draw: random.Random, path: Path) -> str:
    """Cuts a file, changes a byte of it, empties or removes it; tells which."""
    data = bytearray(path.read_bytes())
    how = draw.choice(["cut", "changed", "emptied", "removed"] if data else ["removed"])
    if how == "cut":
        path.write_bytes(data[: draw.randrange(len(data))])
    elif how == "changed":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    return how


# ---------------------------------------------------------------------------------------------------------- the jobs


class Encode(Job):
    """Raw rows to a data set, with two workers and many small parts."""

    name = "encode"

    def __init__(self, bench: Bench, folder: Path, rows: int = 3000):
        super().__init__(bench, folder)
        folder.mkdir()
        self.source = bench.folder / "in.tsv"
        self.source.write_text(table(rows) + table(rows // 10), encoding="utf-8")
        self.vocab = write_vocab(bench.folder)
        self.resume = True

    @property
    def out(self) -> Path:
        return self.folder / "data"

    @property
    def work(self) -> Path:
        return self.folder / ".data.encode"

    def words(self) -> list[str]:
        given = ["--text", "text", "--label", "label", "--val_fraction", "0.1", "--dedup", "--max_len", "16"]
        own = ["--out", str(self.out), "--vocab", str(self.vocab), "--workers", "2", "--chunk_bytes", "1500"]
        return ["-m", "preprocess", "encode", str(self.source), *given, *own, *(["--resume"] if self.resume else [])]

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def result(self) -> dict[str, str]:
        left = {path.name for path in self.folder.iterdir()} - {"data", *STRAY}
        if left:
            raise Difference(f"left behind: {left}")
        return {path.name: digest(path) for path in self.out.iterdir() if path.name not in STRAY}

    def disk_sizes(self) -> list[str]:
        return ["64k", "200k", "400k", "600k", "900k"]

    def between(self) -> dict[str, Callable[[], bool]]:
        return {
            "worker": self.shoot_a_worker,
            "part": self.damage_a_part,
            "input": self.change_an_input,
            "stray": self.put_files_of_others,
            "again": self.start_again,
        }

    def shoot_a_worker(self) -> bool:
        bench = self.bench
        attempt = bench.start(self.words())
        end = time.monotonic() + bench.seconds[self.name]
        wait = bench.draw.random() * 0.5 * bench.seconds[self.name]
        workers: list[psutil.Process] = []
        while time.monotonic() < end and attempt.alive() and not workers:
            time.sleep(0.005)
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(attempt.pid).children()
                workers = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
        time.sleep(wait)
        if workers:
            with suppress(psutil.NoSuchProcess):
                bench.draw.choice(workers).kill()
        code = attempt.finish()
        if code == 0:
            return False
        if code != 1 or "died without a word" not in attempt.output:
            raise Difference(f"exit code {code} after a worker was killed\n{attempt.output}")
        bench.note(self.name, "worker killed", exit=code)
        return True

    def damage_a_part(self) -> bool:
        parts = [path for path in self.work.glob("*-[0-9]*") if path.is_file()] if self.work.is_dir() else []
        if not parts:
            return False
        path = self.bench.draw.choice(sorted(parts))
        self.bench.note(self.name, f"part {damage(self.bench.draw, path)}", file=path.name)
        return True

    def change_an_input(self) -> bool:
        if not (self.work / "run.json").exists() or not self.resume:
            return False
        before = self.source.read_bytes()
        at = self.bench.draw.randrange(len(before) // 2, len(before))
        other = b"y" if before[at : at + 1] == b"x" else b"x"
        self.source.write_bytes(before[:at] + other + before[at + 1 :])
        try:
            self.bench.run(self.words(), 2, "other inputs or settings")
        finally:
            self.source.write_bytes(before)
        self.bench.note(self.name, "input changed", exit=2)
        return True

    def put_files_of_others(self) -> bool:
        for folder in (self.folder, self.out if self.out.is_dir() else self.folder):
            for name in STRAY:
                (folder / name).write_text("stray\tants\t1\n" * 3, encoding="utf-8")
        self.bench.note(self.name, "files of others")
        return True

    def start_again(self) -> bool:
        """Without --resume: the parts of before are not used."""
        if not self.resume or not (self.work / "run.json").exists():
            return False
        self.resume = False
        self.bench.note(self.name, "without --resume")
        return True

    def check(self, wanted: dict[str, str]) -> None:
        super().check(wanted)
        for folder in (self.folder, self.out):
            for name in STRAY:
                path = folder / name
                if path.exists() and path.read_text(encoding="utf-8") != "stray\tants\t1\n" * 3:
                    raise Difference(f"a file of others was changed: {path}")
                path.unlink(missing_ok=True)
        self.resume = True


STRAY = ("data-split-tmp-in_zz", "train-000099.jsonl", "rejects.jsonl.tmp")


class Train(Job):
    """A tiny model through a frozen and a full stage."""

    name = "train"

    def __init__(self, bench: Bench, folder: Path, data: Path):
        super().__init__(bench, folder)
        self.data = data
        self.model = bench.folder / "model.json"
        shape = SHAPE | {"num_hidden_layers": 1, "hidden_size": 8}
        self.model.write_text(json.dumps({"vocab_size": len(TOKENS)} | shape), encoding="utf-8")

    @property
    def last(self) -> Path:
        return self.folder / "last"

    @property
    def finished(self) -> bool:
        return (self.folder / "finished").exists()

    def words(self) -> list[str]:
        files = ["--data", str(self.data), "--init", str(self.model), "--run_dir", str(self.folder)]
        stages = ["--frozen_epochs", "2", "--epochs", "2", "--learning_rate", "1e-2", "--head_units", "8"]
        steps = ["--global_batch_size", "128", "--devices", "cpu:1", "--save_steps", "2", "--shuffle_window", "1000"]
        return ["train.py", "classify", *files, *stages, *steps]

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def result(self) -> dict[str, str]:
        if not self.finished:
            raise Difference("a run that ended is not finished")
        state = read_state(self.last)
        assert state is not None
        arrays = hashlib.blake2b(digest_size=8)
        for name in sorted(state[0]):
            arrays.update(name.encode() + state[0][name].tobytes())
        names = ("loss", "accuracy", "learning_rate", "val_loss", "val_accuracy", "val_macro_f1", "stage", "epoch")
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]
        return {
            "weights": digest(self.folder / "best.weights.h5"),
            "state": arrays.hexdigest(),
            "position": json.dumps(state[1], sort_keys=True),
            "metrics": json.dumps([{name: line.get(name) for name in names} for line in lines]),
            "log": str((self.folder / "log.tsv").read_bytes().count(b"\n")),
        }

    def disk_sizes(self) -> list[str]:
        return ["40k", "100k", "160k", "220k", "300k"]

    def between(self) -> dict[str, Callable[[], bool]]:
        return {
            "state": self.damage_a_state,
            "index": self.damage_an_index,
            "data": self.change_the_data,
            "stray": self.leave_half_a_save,
        }

    def damage_a_state(self) -> bool:
        generations = sorted(self.last.glob("[0-9]*")) if self.last.is_dir() else []
        if len(generations) < 2 or self.finished:  # with one alone there is nothing to go back to; the run says so
            return False
        path = self.bench.draw.choice(sorted(generations[-1].iterdir()))
        self.bench.note(self.name, f"state {damage(self.bench.draw, path)}", file=path.name)
        return True

    def damage_an_index(self) -> bool:
        path = self.data / self.bench.draw.choice(["train.idx", "val.idx"])
        self.bench.note(self.name, f"index {damage(self.bench.draw, path)}", file=path.name)
        return True

    def change_the_data(self) -> bool:
        """A byte of the data set changed: refused, whatever the run was at."""
        if self.finished:
            return False
        path = self.data / "train.jsonl"
        before = path.read_bytes()
        digits = [i for i, byte in enumerate(before) if byte in b"123456789"]
        at = self.bench.draw.choice(digits)
        path.write_bytes(before[:at] + (b"1" if before[at : at + 1] != b"1" else b"2") + before[at + 1 :])
        try:
            self.bench.run(self.words(), 2, "error: ")
        finally:
            path.write_bytes(before)
        self.bench.note(self.name, "data changed", exit=2)
        return True

    def leave_half_a_save(self) -> bool:
        if not self.last.is_dir():  # no run has begun: the folder would be someone else's
            return False
        (self.last / "writing").mkdir(exist_ok=True)
        (self.last / "writing/state.safetensors").write_bytes(b"half")
        self.folder.joinpath("saving-best.weights.h5").write_bytes(b"half")
        self.folder.joinpath("notes.txt").write_bytes(b"mine")
        self.bench.note(self.name, "leftovers of a save")
        return True


class Predict(Job):
    """Labels for the rows of a file."""

    name = "predict"

    def __init__(self, bench: Bench, folder: Path, run_dir: Path, rows: int = 20_000):
        super().__init__(bench, folder)
        folder.mkdir()
        self.run_dir = run_dir
        self.source = bench.folder / "rows.tsv"
        self.source.write_text(table(rows, seed=1), encoding="utf-8")

    @property
    def output(self) -> Path:
        return self.folder / "labels.jsonl"

    def words(self) -> list[str]:
        files = ["--run_dir", str(self.run_dir), "--input", str(self.source), "--output", str(self.output)]
        return ["predict.py", "run", *files, "--devices", "cpu:1", "--keep", "id"]

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def result(self) -> dict[str, str]:
        left = {path.name for path in self.folder.iterdir()} - {self.output.name, "labels.jsonl.old"}
        if left:
            raise Difference(f"left behind: {left}")
        return {"predictions": digest(self.output)}

    def disk_sizes(self) -> list[str]:
        return ["64k", "512k", "1m", "2m"]

    def between(self) -> dict[str, Callable[[], bool]]:
        return {"input": self.change_an_input, "output": self.keep_an_output}

    def change_an_input(self) -> bool:
        """Other rows than those of the run that was stopped: refused, and nothing of that run is lost."""
        if not (self.folder / ".labels.jsonl.predict/run.json").exists():
            return False
        before = self.source.read_bytes()
        self.source.write_bytes(before.replace(b"x y", b"y x"))
        try:
            self.bench.run(self.words(), 2, "other inputs or settings")
        finally:
            self.source.write_bytes(before)
        self.bench.note(self.name, "input changed", exit=2)
        return True

    def keep_an_output(self) -> bool:
        """An older output stays until the new one is complete."""
        self.output.write_bytes(b"older\n")
        stopped = self.stop()
        if stopped and self.output.read_bytes() != b"older\n":
            raise Difference("an older output was changed by a run that was stopped")
        return stopped


# ---------------------------------------------------------------------------------------------------------- the soak


def one_round(job: Job, wanted: dict[str, str], bench: Bench) -> None:
    """Breaks a job two to five times, lets it end, and compares."""
    job.clear()
    faults: list[Callable[[], bool]] = []
    if bench.draw.random() < 0.15:
        faults.append(job.full_disk)
    for _ in range(bench.draw.randint(2, 5)):
        faults.append(job.stop)
        if bench.draw.random() < 0.6:
            faults.append(bench.draw.choice(list(job.between().values())))
    if bench.draw.random() < 0.12:
        faults.append(job.beside)
    for fault in faults:
        if not fault():
            bench.write(job=job.name, missed=fault.__name__)  # the job had ended, or there was nothing to break
    job.finish()
    job.check(wanted)


def soak(bench: Bench, minutes: float, least: int, names: Sequence[str]) -> None:
    """Rounds of the named jobs until the time is over, and at least so many faults."""
    started = time.monotonic()
    jobs: dict[str, Job] = {"encode": Encode(bench, bench.folder / "encode")}
    wanted: dict[str, dict[str, str]] = {}

    def undisturbed(job: Job) -> None:
        begun = time.monotonic()
        bench.run(job.words())
        bench.seconds[job.name] = time.monotonic() - begun
        wanted[job.name] = job.result()

    undisturbed(jobs["encode"])
    data = bench.folder / "data"
    shutil.copytree(jobs["encode"].folder / "data", data)
    jobs["train"] = Train(bench, bench.folder / "run", data)
    undisturbed(jobs["train"])
    run_dir = bench.folder / "trained"
    shutil.copytree(bench.folder / "run", run_dir)
    jobs["predict"] = Predict(bench, bench.folder / "predict", run_dir)
    undisturbed(jobs["predict"])
    bench.write(undisturbed_s={name: round(value, 2) for name, value in bench.seconds.items()})
    while time.monotonic() - started < 60 * minutes or bench.faults.total() < least:
        bench.round += 1
        name = bench.draw.choice(names)
        begun = time.monotonic()
        one_round(jobs[name], wanted[name], bench)
        bench.write(job=name, equal=True, seconds=round(time.monotonic() - begun, 2), faults=bench.faults.total())
        if sys.stderr.isatty() or bench.round % 10 == 0:
            spent = (time.monotonic() - started) / 60
            sys.stderr.write(f"{spent:5.1f} min: {bench.round} rounds, {bench.faults.total()} faults, no difference\n")


def summary(bench: Bench, minutes: float, outcome: str) -> str:
    """The Markdown page."""
    import keras
    import tensorflow as tf

    kinds = Counter[str]()
    for (job, fault), count in bench.faults.items():
        kinds[f"| {job} | {fault} |"] += count
    undisturbed = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in bench.seconds.items())
    lines = [
        "# Soak",
        "",
        "What `make soak` wrote: jobs broken at random, run again by the same command, and compared with undisturbed",
        "runs: data sets and predictions byte for byte, weights and training state bit for bit on one CPU device.",
        "",
        f"* {outcome}",
        f"* {bench.faults.total()} faults in {bench.round} rounds, {minutes:.1f} minutes, seed {bench.seed}",
        f"* undisturbed: {undisturbed}",
        f"* Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}, "
        f"{os.cpu_count()} cores",
        "",
        "| job | fault | times |",
        "|---|---|---:|",
        *(f"{kind} {count} |" for kind, count in sorted(kinds.items())),
        "",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=0, help="least number of faults, however long it takes")
    parser.add_argument("--jobs", default="encode,encode,train,predict", help="drawn from, as often as they are named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder of soak.jsonl and soak.md")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell jobs would ignore it
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    started = time.monotonic()
    forks = Forks()
    with (given.out / "soak.jsonl").open("wb") as log:
        bench = Bench(folder, random.Random(given.seed), log, forks, can_mount(folder), given.seed)
        bench.write(seed=given.seed, disks=bench.disks)
        try:
            soak(bench, given.minutes, given.faults, given.jobs.split(","))
            outcome, code = "no loss, no difference", 0
        except Difference as difference:
            bench.write(difference=str(difference))
            outcome, code = f"a difference in round {bench.round}", 1
            sys.stderr.write(f"{difference}\nwhat it left is in {folder}\n")
        finally:
            forks.close()
    (given.out / "soak.md").write_text(summary(bench, (time.monotonic() - started) / 60, outcome), encoding="utf-8")
    if code == 0:
        shutil.rmtree(folder)
    sys.stderr.write(f"{bench.faults.total()} faults, {outcome}: {given.out}/soak.md\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
