"""Environments of the peers: python -m benchmarks.environments builds those that are missing.

They lie in `.venv-bench`, or in the folder that `TFBERT_BENCH_ENVS` names. Where one is missing, its peers run in the
environment of the bench itself if that has the packages, and are left out, saying so, if it has not.
"""

import os
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.measure import ROOT

FOLDER = Path(os.environ.get("TFBERT_BENCH_ENVS", ROOT / ".venv-bench"))
PACKAGES = {
    # transformers and datasets on CPU torch, onnxruntime, flash-tokenizer
    "torch": (
        *("torch", "transformers", "datasets", "accelerate", "tokenizers", "orjson", "flash-tokenizer"),
        *("onnxruntime", "onnx", "onnxscript"),
    ),
    "keras": ("tensorflow>=2.21,<2.22", "keras-hub"),  # KerasHub
    "legacy": ("tensorflow>=2.21,<2.22", "tf-keras>=2.21,<2.22", "keras-bert"),  # keras-bert on legacy Keras, tf.data
}
_CPU_TORCH = "torch==2.13.0+cpu"  # a tenth of the size of the wheel with CUDA, where an index has it


def python_of(name: str) -> Path | None:
    """The interpreter to run a peer with; `ours` is that of the bench. None: its packages are not installed."""
    if name == "ours":
        return Path(sys.executable)
    own = FOLDER / name / "bin/python"
    if own.exists():
        return own
    try:
        for package in PACKAGES[name]:
            version(package.split(">")[0])
    except PackageNotFoundError:
        return None
    return Path(sys.executable)


def build() -> None:
    for name, packages in PACKAGES.items():
        ready = FOLDER / name / "ready"
        if ready.exists():
            continue
        print(f"installing {', '.join(packages)} into {FOLDER / name} ...", file=sys.stderr)  # noqa: T201
        venv.create(FOLDER / name, with_pip=True)
        install = [FOLDER / name / "bin/python", "-m", "pip", "install", "--quiet"]
        if "torch" in packages:
            subprocess.run([*install, _CPU_TORCH], check=False, stderr=subprocess.DEVNULL)
        subprocess.run([*install, *packages], check=True)
        ready.touch()


if __name__ == "__main__":
    build()
