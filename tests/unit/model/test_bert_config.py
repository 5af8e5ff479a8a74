"""The shape of an encoder: what is refused, and what is read from files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tfbert.errors import ConfigError
from tfbert.model.checkpoint import check_vocabulary
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder

GOOD = {"vocab_size": 50, "hidden_size": 8, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("vocab_size", value) for value in (0, -1, 1.5, "50", True, None)],
        ("hidden_size", 0),
        ("num_hidden_layers", -1),
        ("num_attention_heads", 3),
        ("max_position_embeddings", 0),
        ("type_vocab_size", 0),
        ("hidden_act", "swish2"),
        ("hidden_act", None),
        *[("hidden_dropout_prob", value) for value in (-0.1, 1.0, "0.1", None, float("nan"))],
        ("attention_probs_dropout_prob", 2),
        ("layer_norm_eps", "1e-12"),
        ("initializer_range", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(GOOD | {name: value}), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"bert_config\.json: {name} .*Received: "):
        BertConfig.load(path)


def test_no_layers_are_allowed() -> None:
    assert BertConfig(**GOOD, num_hidden_layers=0).num_hidden_layers == 0  # type: ignore[arg-type]


def test_both_spellings_of_a_file_are_read_and_other_keys_ignored(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "vocab/bert-base-chinese"
    google, huggingface = BertConfig.load(folder / "bert_config.json"), BertConfig.load(folder / "config.json")
    assert google == huggingface
    assert (google.vocab_size, google.hidden_size, google.num_hidden_layers) == (21128, 768, 12)


def test_a_file_survives_its_dump(tmp_path: Path) -> None:
    config = BertConfig(**GOOD, hidden_act="relu", layer_norm_eps=1e-5)  # type: ignore[arg-type]
    path = tmp_path / "c.json"
    path.write_text("\ufeff" + config.dump(), encoding="utf-8")
    assert BertConfig.load(path) == config


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"hidden_size": 8}', "\x00"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.json: a BERT config"):
        BertConfig.load(path)
    with pytest.raises(ConfigError, match=r"no\.json: a BERT config"):
        BertConfig.load(tmp_path / "no.json")


def test_a_vocabulary_size_fills_in_and_does_not_override(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"hidden_size": 8, "num_attention_heads": 2}', encoding="utf-8")
    assert BertConfig.load(path, 70).vocab_size == 70
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert BertConfig.load(path, 70).vocab_size == 50


def test_relative_positions_are_refused() -> None:
    """Their weights would be left out without a word."""
    with pytest.raises(ConfigError, match="position_embedding_type must be absolute. Received: 'relative_key'"):
        BertConfig.from_dict(GOOD | {"position_embedding_type": "relative_key"})


def test_a_vocabulary_larger_than_the_model_is_refused_with_both_numbers() -> None:
    """Case 045."""
    config = BertConfig(**GOOD)  # type: ignore[arg-type]
    assert check_vocabulary(config, 50, "v.txt") is None
    assert "49 tokens, the model 50" in (check_vocabulary(config, 49, "v.txt") or "")
    with pytest.raises(ConfigError, match=r"51 tokens \(v\.txt\), vocab_size 50"):
        check_vocabulary(config, 51, "v.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"vocab_size": 2000000000, "hidden_size": 1048560}', "the weights must fit in memory"),
        ('{"vocab_size": 9999999999999}', "vocab_size is a whole number from 1 to 2147483647"),
        ("[" * 100_000, "a BERT config is a JSON file"),
    ],
)
def test_absurd_files_are_refused_before_anything_is_made(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bert_config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"bert_config.json: {message}"):
        BertConfig.load(path)


@pytest.mark.usefixtures("logical_cpus")
def test_the_number_of_weights_is_that_of_the_encoder() -> None:
    config = BertConfig(30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12)
    assert config.num_weights == sum(math.prod(weight.shape) for weight in BertEncoder(config).weights)
