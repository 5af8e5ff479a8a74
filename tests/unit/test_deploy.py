"""Manifests for clusters, checked against Kubernetes' own schemas, and their commands against our settings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tfbert.cli import parse

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VERSION = "1.33"


def load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8")))


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Pod templates anywhere in a manifest."""
    if isinstance(value, dict):
        if "template" in value:
            yield value["template"]
        for item in value.values():
            yield from pods(item)
    elif isinstance(value, list):
        for item in value:
            yield from pods(item)


@pytest.mark.parametrize(("name", "count"), [("tfjob.yaml", 1), ("rayjob.yaml", 2)])
def test_pods_are_as_kubernetes_wants_them(name: str, count: int) -> None:
    found = list(pods(load(name)["spec"]))
    assert len(found) == count
    for template in found:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)
        mounted = {mount["name"] for c in pod["spec"]["containers"] for mount in c["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_check_can_fail() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": 3}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_storage_is_shared() -> None:
    claim = load("shared-storage.yaml")
    kubernetes_validate.validate(claim, VERSION, strict=True)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.usefixtures("logical_cpus")
def test_the_training_operator_runs_a_command_that_we_take() -> None:
    from tfbert.recipes.classify import ClassifyConfig

    job = load("tfjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    script, command, *words = container["args"]
    assert (script, command) == ("train.py", "classify")
    assert parse(ClassifyConfig, "train.py classify", words).save_steps == 200


@pytest.mark.usefixtures("logical_cpus")
def test_ray_runs_a_command_that_we_take() -> None:
    from tfbert.launch import RayConfig
    from tfbert.recipes.classify import ClassifyConfig

    job = load("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "tfbert.launch", "ray"]
    split = words.index("--")
    config = parse(RayConfig, "python -m tfbert.launch ray", words[4:split])
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (config.min_workers, config.max_workers) == (group["minReplicas"], group["maxReplicas"])
    assert words[split + 1] == "classify"
    assert parse(ClassifyConfig, "train.py classify", words[split + 2 :]).run_dir == "/shared/run"


def test_the_image_holds_what_runs() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert {"tfbert", "preprocess", "train.py", "predict.py", "requirements.txt", "pyproject.toml"} <= copied
