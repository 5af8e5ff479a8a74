"""The rules of the house, read from the source: who imports whom, and what no file may do."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    [*(ROOT / "tfbert").rglob("*.py"), *(ROOT / "preprocess").rglob("*.py"), ROOT / "train.py", ROOT / "predict.py"]
)
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
OURS = ("tfbert", "preprocess", "train", "predict")

# Which units a unit may import, besides itself. `progress` logs, `cli` parses: anyone may.
BASE = {"errors", "progress", "version", "disk", "choices", "devices"}
ALLOWED = {
    "version": set(),
    "errors": set(),
    "disk": set(),
    "choices": set(),
    "devices": {"errors"},
    "progress": {"errors"},
    "cli": BASE,
    "text": BASE,
    "data": BASE | {"text"},
    "masked_tokens": BASE | {"data", "model"},
    "preprocess": BASE | {"cli", "text", "data", "masked_tokens", "ray_cluster"},
    "report": BASE,
    "losses": BASE,
    "optim": BASE,
    "cluster": BASE,
    "ray_cluster": BASE,
    "ray_backend": set(),
    "launch": BASE | {"cli", "ray_backend", "ray_cluster", "train"},
    "strategy": BASE | {"cluster"},
    "model": BASE | {"losses"},
    "objectives": BASE | {"losses", "model", "strategy"},
    "loop": BASE | {"data", "objectives", "optim", "strategy", "model"},
    "callbacks": BASE | {"cli", "data", "losses", "loop", "optim", "strategy", "model"},
    "run_folder": BASE | {"data", "model"},
    "serving": BASE | {"data", "model", "run_folder"},
}
EVERYTHING_BELOW = {name for name in ALLOWED if name not in ("preprocess", "launch", "ray_backend")}
ALLOWED |= {
    "training": EVERYTHING_BELOW,
    "predictor": EVERYTHING_BELOW,
    "recipes": EVERYTHING_BELOW | {"training"},
    "train": BASE | {"cli", "recipes", "training", "preprocess"},  # preprocess: raw data of a task
    "predict": BASE | {"cli", "predictor"},
}
NO_TENSORFLOW = {
    *("version", "errors", "disk", "choices", "devices", "progress", "cluster"),
    *("cli", "text", "data", "preprocess", "train", "predict"),
}
HEAVY = {"tensorflow", "keras", "tf_keras", "keras_bert"}
ON_DEMAND = {
    "matplotlib",
    "jieba",
    "rjieba",
    "opencc",
    "tokenizers",
    "pyarrow",
    "sklearn",
    "scipy",
    "tensorflow_datasets",
}


def unit_of(module: str) -> str:
    """The part of the house that a module of ours belongs to: `tfbert.data.plan` -> data."""
    words = module.split(".")
    if words[0] != "tfbert":
        return words[0]
    return words[1] if len(words) > 1 else "version"


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names that a tree imports, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = (ROOT / Path(*full.split("."))).with_suffix(".py").exists()
                yield (full if is_module else str(node.module)), node.lineno


def at_import_time(tree: ast.Module) -> ast.Module:
    """The module without the bodies of its functions."""

    class Outside(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:  # noqa: N802
            return None

    copied = ast.parse(ast.unparse(tree))
    return ast.fix_missing_locations(Outside().visit(copied))


@pytest.mark.parametrize("name", TREES)
def test_who_imports_whom(name: str):
    """errors, text <- data <- preprocess; data and model never import each other; recipes never import recipes."""
    unit = unit_of(module_of(name))
    assert unit in ALLOWED, f"{name} belongs to no known part; say in this test what it may import"
    for target, line in imports(TREES[name]):
        if target.split(".")[0] not in OURS:
            continue
        other = unit_of(target)
        if unit == other == "recipes":
            pytest.fail(f"{name}:{line}: a recipe imports {target}")
        assert other == unit or other in ALLOWED[unit], f"{name}:{line}: {unit} imports {target}"


def test_the_rules_themselves():
    """What the architecture says of them in words."""
    assert "model" not in ALLOWED["data"]
    assert "data" not in ALLOWED["model"]
    assert "recipes" not in ALLOWED["recipes"]
    assert {name for name, allowed in ALLOWED.items() if "preprocess" in allowed} == {"train"}
    for name, allowed in ALLOWED.items():  # no circles: whatever a part may import may import less
        for other in allowed:
            assert name not in ALLOWED[other], f"{name} and {other}"


@pytest.mark.parametrize("name", TREES)
def test_what_is_heavy_comes_late(name: str):
    """TensorFlow costs seconds and half a gigabyte a process: the preprocessing side never loads it."""
    unit = unit_of(module_of(name))
    early = {target.split(".")[0] for target, _ in imports(at_import_time(TREES[name]))}
    if unit in NO_TENSORFLOW and name != "tfbert/data/feed.py":
        assert not early & HEAVY
        anywhere = {target.split(".")[0] for target, _ in imports(TREES[name])}
        assert not anywhere & HEAVY or unit == "cli"  # its `import_tensorflow` is what scripts call
    assert not early & ON_DEMAND


@pytest.mark.parametrize("name", TREES)
def test_no_print_and_no_assert(name: str):
    """A library logs; an assert is gone under `python -O`."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name}:{node.lineno}"
        assert not isinstance(node, ast.Assert), f"{name}:{node.lineno}"


UNSAFE_CALLS = {
    *("eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("shutil.unpack_archive", "tarfile.open", "zipfile.ZipFile", "keras.models.load_model", "keras.saving.load_model"),
}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "tarfile", "zipfile"}
GONE_FROM_NUMPY = {"int", "float", "object", "str", "product", "cumproduct", "in1d", "trapz", "alltrue", "NaN"}


@pytest.mark.parametrize("name", TREES)
def test_nothing_that_runs_what_it_reads(name: str):
    """No pickle, no eval, no shell, no archives that unpack to where they like."""
    assert not {target.split(".")[0] for target, _ in imports(TREES[name])} & UNSAFE_MODULES
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in UNSAFE_CALLS, f"{name}:{node.lineno}"
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("shell", "False") == "False", f"{name}:{node.lineno}"
            assert given.get("allow_pickle", "False") == "False", f"{name}:{node.lineno}"


@pytest.mark.parametrize("name", TREES)
def test_nothing_that_numpy_no_longer_has(name: str):
    """Case 189."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
            assert node.attr not in GONE_FROM_NUMPY, f"{name}:{node.lineno}"


@pytest.mark.parametrize("name", TREES)
def test_every_module_says_what_it_is(name: str):
    assert ast.get_docstring(TREES[name])


@pytest.mark.parametrize("name", TREES)
def test_names_of_files(name: str):
    assert Path(name).stem not in ("utils", "helpers", "misc", "common")


def test_every_package_is_installed():
    """`pip install .` takes all of them."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in FILES if path.name == "__init__.py"}
    assert folders == set(project["tool"]["setuptools"]["packages"])
