"""The best tokens at masked positions, many rows a call."""

from pathlib import Path

import numpy as np
import pytest
from masked_models import TOKENS, write_masked_lm

from tfbert.data.masked_rows import MaskedRows, TopTokens
from tfbert.masked_tokens import CALL_POSITIONS, CALL_TOKENS, MaskedPredictor, call_length, find_model
from tfbert.model.checkpoint import load_masked_lm
from tfbert.model.mlm import MaskedLM

pytestmark = pytest.mark.usefixtures("logical_cpus")
ALLOWED = [[token.isalpha() and token.isascii() for token in TOKENS], [len(token) == 1 for token in TOKENS]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked_lm(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def predictor(logical_cpus: int, model: Path) -> MaskedPredictor:
    return MaskedPredictor(find_model(model)[0], len(TOKENS), ALLOWED, 9)


def make_rows(count: int, seed: int = 0) -> list[MaskedRows]:
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        length, positions = int(draw.integers(4, 65)), int(draw.integers(0, 4))
        rows.append(
            MaskedRows(
                draw.integers(5, len(TOKENS), length).astype(np.int32),
                np.array([length], np.int64),
                np.array([length // 2], np.int32),
                np.zeros(positions, np.int64),
                np.sort(draw.choice(length, positions, replace=False)).astype(np.int32),
                draw.integers(0, 2, positions).astype(np.int8),
            )
        )
    return rows


def test_tokens_are_those_of_one_row_at_a_time(predictor: MaskedPredictor, model: Path) -> None:
    init, files = find_model(model)
    assert [path.name for path in files] == ["model.safetensors"]
    plain = MaskedLM(init.config)
    load_masked_lm(plain, init)
    rows = make_rows(30)
    top = predictor(MaskedRows.join(rows))
    at = 0
    for row in rows:
        ids = row.token_ids[None]
        segments = (np.arange(ids.shape[1]) >= row.first_segment[0]).astype(np.int32)[None]
        logits = np.array(plain({"token_ids": ids, "segment_ids": segments, "padding_mask": np.ones_like(ids)}))
        for column, kind in zip(row.position_column, row.position_kind, strict=True):
            scores = np.where(ALLOWED[kind], logits[column], -np.inf)
            order = np.argsort(-scores, kind="stable")[:9]
            assert top.ids[at].tolist() == order.tolist()
            np.testing.assert_allclose(top.scores[at], scores[order], rtol=0, atol=1e-4)
            at += 1
    assert at == len(top.ids)


def test_bits_do_not_depend_on_what_is_computed_together(predictor: MaskedPredictor) -> None:
    rows = make_rows(40)
    joined = predictor(MaskedRows.join(rows))
    alone = [predictor(row) for row in rows[::-1]][::-1]
    ids, scores = np.concatenate([top.ids for top in alone]), np.concatenate([top.scores for top in alone])
    np.testing.assert_array_equal(joined.ids, ids)
    np.testing.assert_array_equal(joined.scores.view(np.uint32), scores.view(np.uint32))


def test_more_positions_than_a_call_has_room_for(predictor: MaskedPredictor) -> None:
    """Also more rows of a length than a call has, and positions of one row in two calls."""
    count = 3 * CALL_POSITIONS
    length = 60
    rows = MaskedRows(
        np.tile(np.arange(5, 5 + length, dtype=np.int32), 40),
        length * np.arange(1, 41, dtype=np.int64),
        np.full(40, length, np.int32),
        np.repeat(np.arange(40), count // 40),
        np.tile(np.arange(count // 40, dtype=np.int32), 40),
        np.zeros(count // 40 * 40, np.int8),
    )
    done: list[int] = []
    top = predictor(rows, done.append)
    assert sum(done) == len(top.ids) == len(rows.position_row)
    assert len(done) >= 3
    np.testing.assert_array_equal(top.scores.reshape(40, -1, 9), np.broadcast_to(top.scores[: count // 40], (40, count // 40, 9)))  # noqa: E501  # fmt: skip


def test_nothing_to_predict(predictor: MaskedPredictor) -> None:
    empty = np.zeros(0, np.int32)
    rows = MaskedRows(empty, empty.astype(np.int64), empty, empty.astype(np.int64), empty, empty.astype(np.int8))
    top = predictor(rows)
    assert isinstance(top, TopTokens)
    assert top.ids.shape == (0, 9)


@pytest.mark.parametrize("longest", [16, 100, 512])
def test_lengths_of_calls(longest: int) -> None:
    for length in range(1, longest + 1):
        found = call_length(length, longest)
        assert length <= found <= longest
        assert found <= max(length + 7, 1.25 * length)
        assert CALL_TOKENS >= found
