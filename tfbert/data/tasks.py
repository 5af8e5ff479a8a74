"""Published tasks by name: GLUE, CLUE and others. One table; nothing else in the code knows a task.

A task says what its rows are, how its files come (layouts: as the benchmark hands them out, or as `preprocess tfds`
writes them), and by which numbers results are published. Test files without labels are none of its parts: they are
inputs of `predict.py run`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfbert.data.labels import LabelMap
from tfbert.errors import ConfigError, DataError

_COMPRESSED = ("", ".gz", ".zst")


@dataclass(frozen=True)
class Layout:
    """Files of a task as someone hands them round.

    Attributes:
        files: part (train, val, test) -> name of its file; train and val must be there.
        text, text_b, label: columns.
        names: of the columns, where the files have no header line.
        without: (column, value) pairs; rows with them are left out.
    """

    files: Mapping[str, str]
    text: str
    label: str
    text_b: str | None = None
    names: str | None = None
    without: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class NamedTask:
    """A published task.

    Attributes:
        folder: name that its folder has in the benchmark.
        layouts: the first whose training file is there is taken.
        metrics: that results are published by, as training reports them; the first decides the best epoch.
        max_len: tokens a row that is usual.
        labels: names in id order, each with all its spellings in the files; empty where they are those met.
        kind: classify or regression.
    """

    folder: str
    layouts: Sequence[Layout]
    metrics: Sequence[str] = ("accuracy",)
    max_len: int = 128
    labels: Sequence[tuple[str, ...]] = ()
    kind: str = "classify"

    def label_map(self) -> LabelMap | None:
        """Names and ids, or None where they are not fixed."""
        if not self.labels:
            return None
        return LabelMap(
            tuple(names[0] for names in self.labels), {name: i for i, names in enumerate(self.labels) for name in names}
        )


def find_task(name: str) -> NamedTask:
    """Raises ConfigError where there is no such task."""
    if name not in TASKS:
        raise ConfigError(f"A task by name is one of {', '.join(TASKS)}. Received: {name!r}.")
    return TASKS[name]


def find_files(name: str, folder: Path) -> tuple[Layout, dict[str, Path]]:
    """The files of a task in its folder, or in the folder of its benchmark.

    Returns:
        The layout, and part -> file.

    Raises:
        ConfigError: there is no such task.
        DataError: the folder lacks the training or the validation file of every layout.
    """
    task = find_task(name)
    if not folder.is_dir():
        raise DataError(f"--task {name} takes the folder with the files of the task. Received: {folder}.")
    for place in (folder, folder / task.folder):
        for layout in task.layouts:
            parts = {part: found for part, file in layout.files.items() if (found := _existing(place / file))}
            if "train" not in parts:
                continue
            if "val" not in parts:
                raise DataError(
                    f"{place}: {name} needs {layout.files['val']} for validation. Received: {_listing(place)}. To set "
                    "part of the training rows apart instead, give the columns of the file in place of --task."
                )
            return layout, parts
    wanted = " or ".join(layout.files["train"] for layout in task.layouts)
    raise DataError(f"{folder}: {name} needs {wanted}, here or in {task.folder}/. Received: {_listing(folder)}.")


def tfds_splits(name: str) -> tuple[str, ...]:
    """The splits of the task's TensorFlow Datasets builder that are its parts.

    Raises:
        ConfigError: there is no such task, or no builder of it.
    """
    for layout in find_task(name).layouts:
        if layout.files["train"] == _TFDS["train"]:
            return tuple(file.removesuffix(".jsonl") for file in layout.files.values())
    raise ConfigError(f"--task {name} has no TensorFlow Datasets builder. Received: one as --data. Give its folder.")


def _existing(path: Path) -> Path | None:
    return next((found for end in _COMPRESSED if (found := path.with_name(path.name + end)).is_file()), None)


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"the files {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}" if names else "an empty folder"


_TSV = {"train": "train.tsv", "val": "dev.tsv"}
_TFDS = {"train": "train.jsonl", "val": "validation.jsonl"}
_JSON = {"train": "train.json", "val": "dev.json"}
_ENTAILMENT = (("entailment", "0"), ("not_entailment", "1"))
_INFERENCE = (("entailment", "0"), ("neutral", "1"), ("contradiction", "2"))


def _glue(text: str, label: str, text_b: str | None = None, tfds: Sequence[str] = ()) -> tuple[Layout, Layout]:
    """GLUE's own files, and those of TFDS; `tfds` are the columns there where they differ."""
    names = tuple(tfds) or ((text,) if text_b is None else (text, text_b))
    return Layout(_TSV, text, label, text_b), Layout(_TFDS, names[0], "label", names[1] if text_b else None)


_MNLI = {"train": "train.tsv", "val": "dev_matched.tsv", "test": "dev_mismatched.tsv"}
_MNLI_TFDS = {"train": "train.jsonl", "val": "validation_matched.jsonl", "test": "validation_mismatched.jsonl"}
_NO_GOLD = (("gold_label", "-"),)  # annotators did not agree

_TNEWS = {
    "100": "story", "101": "culture", "102": "entertainment", "103": "sports", "104": "finance", "106": "house",
    "107": "car", "108": "edu", "109": "tech", "110": "military", "112": "travel", "113": "world", "114": "stock",
    "115": "agriculture", "116": "game",
}  # fmt: skip
_TOPICS = (
    "finance", "realty", "stocks", "education", "science", "society", "politics", "sports", "game", "entertainment",
)  # fmt: skip
_TITLES = {"train": "train.txt", "val": "dev.txt", "test": "test.txt"}
_REVIEWS = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}

TASKS: dict[str, NamedTask] = {
    "glue/cola": NamedTask(
        "CoLA",
        (
            Layout(_TSV, "sentence", "label", names="source,label,mark,sentence"),
            Layout(_TFDS, "sentence", "label"),
        ),
        metrics=("mcc",),
        labels=(("unacceptable", "0"), ("acceptable", "1")),
    ),
    "glue/sst2": NamedTask("SST-2", _glue("sentence", "label"), labels=(("negative", "0"), ("positive", "1"))),
    "glue/mrpc": NamedTask(
        "MRPC",
        _glue("#1 String", "Quality", "#2 String", tfds=("sentence1", "sentence2")),
        metrics=("f1", "accuracy"),
        labels=(("not_equivalent", "0"), ("equivalent", "1")),
    ),
    "glue/stsb": NamedTask(
        "STS-B", _glue("sentence1", "score", "sentence2"), metrics=("pearson", "spearman"), kind="regression"
    ),
    "glue/qqp": NamedTask(
        "QQP",
        _glue("question1", "is_duplicate", "question2"),
        metrics=("f1", "accuracy"),
        labels=(("not_duplicate", "0"), ("duplicate", "1")),
    ),
    "glue/mnli": NamedTask(
        "MNLI",
        (
            Layout(_MNLI, "sentence1", "gold_label", "sentence2", without=_NO_GOLD),
            Layout(_MNLI_TFDS, "premise", "label", "hypothesis"),
        ),
        labels=_INFERENCE,
    ),
    "glue/qnli": NamedTask("QNLI", _glue("question", "label", "sentence"), labels=_ENTAILMENT),
    "glue/rte": NamedTask("RTE", _glue("sentence1", "label", "sentence2"), labels=_ENTAILMENT),
    "glue/wnli": NamedTask(
        "WNLI", _glue("sentence1", "label", "sentence2"), labels=(("not_entailment", "0"), ("entailment", "1"))
    ),
    "clue/tnews": NamedTask(
        "tnews",
        (Layout(_JSON, "sentence", "label"),),
        labels=tuple((f"news_{name}", number) for number, name in _TNEWS.items()),
    ),
    "clue/iflytek": NamedTask(
        "iflytek",
        (Layout(_JSON, "sentence", "label"),),
        labels=tuple((str(i),) for i in range(119)),
    ),
    "clue/afqmc": NamedTask("afqmc", (Layout(_JSON, "sentence1", "label", "sentence2"),), labels=(("0",), ("1",))),
    "thucnews": NamedTask(
        "thucnews",
        (Layout(_TITLES, "0", "1"),),
        max_len=32,
        labels=tuple((name, str(i)) for i, name in enumerate(_TOPICS)),
    ),
    "chnsenticorp": NamedTask(
        "chnsenticorp",
        (Layout(_REVIEWS, "text_a", "label"),),
        max_len=256,
        labels=(("negative", "0"), ("positive", "1")),
    ),
    "lcqmc": NamedTask("lcqmc", (Layout(_TSV, "0", "2", "1"),), labels=(("0",), ("1",))),
}
