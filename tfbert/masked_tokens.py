"""Which tokens a masked language model expects at masked positions, many rows a call.

A call has one shape a length, filled up with rows that nobody asked for. So the scores of a row are the same bits
whatever it is computed together with, and what is made of them does not depend on how the rows came: a matrix product
of another shape adds in another order, and the k-th best token of a thousand words would be another one.

    B rows, L tokens a row, M positions, V tokens in the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import ops

from tfbert.data.masked_rows import MaskedRows, TopTokens
from tfbert.errors import ConfigError
from tfbert.model.checkpoint import Init, check_vocabulary, find_init, load_masked_lm
from tfbert.model.mlm import MaskedLM

CALL_TOKENS = 2048  # B * L of a call: on a CPU, what a layer gives stays in the cache
CALL_POSITIONS = 320  # M of a call: 15 % of its tokens, and some


def call_length(length: int, longest: int) -> int:
    """L of the call in which a row of a length is computed: at most a quarter or 7 more, from the length alone."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    return min(-(-length // step) * step, longest)


def find_model(path: Path | str) -> tuple[Init, list[Path]]:
    """What `--model` names, and the files that hold its weights.

    Raises:
        TfbertError: nothing of the kind is there; a bare config has no weights, and random ones expect nothing.
    """
    init = find_init(path)
    if init.kind == "config":
        raise ConfigError(
            f"A masked language model needs weights. Received: {path}, a bare config. Give a Google checkpoint or a "
            "Hugging Face folder."
        )
    google = init.path.parent.glob(f"{init.path.name}.*")
    return init, sorted(google) if init.kind == "google" else [init.path]


class MaskedPredictor:
    """A masked language model, compiled.

    Args:
        init: a checkpoint with a masked-language-model head.
        num_tokens: of the vocabulary.
        allowed: for each kind of position, which tokens are wanted, bool (kinds, V).
        top: K, tokens a position.

    Raises:
        TfbertError: the checkpoint is damaged, has no such head, or another vocabulary.
    """

    def __init__(self, init: Init, num_tokens: int, allowed: Sequence[Sequence[bool]], top: int):
        check_vocabulary(init.config, num_tokens, "--vocab")
        self.config = init.config
        self._model = MaskedLM(init.config.blank())
        load_masked_lm(self._model, init)
        wanted = np.zeros((len(allowed), init.config.vocab_size), bool)
        wanted[:, :num_tokens] = allowed
        self._bias = ops.convert_to_tensor(np.where(wanted, 0.0, -1e9).astype(np.float32))
        self._top = min(top, num_tokens)
        matrix, vector = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,), tf.int32)
        self._call: Callable[..., tuple[tf.Tensor, tf.Tensor]] = tf.function(
            self._compute, input_signature=[matrix, vector, vector, vector, vector]
        )

    def _compute(
        self, token_ids: tf.Tensor, first: tf.Tensor, lengths: tf.Tensor, positions: tf.Tensor, kinds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        columns = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None, :]
        inputs = {
            "token_ids": token_ids,
            "segment_ids": ops.cast(columns >= first[:, None], "int32") * ops.cast(columns < lengths[:, None], "int32"),
            "padding_mask": ops.cast(columns < lengths[:, None], "int32"),
        }
        logits = self._model(inputs, positions) + ops.take(self._bias, kinds, axis=0)
        scores, ids = ops.top_k(logits, self._top)
        return ids, scores

    def __call__(self, rows: MaskedRows, progress: Callable[[int], None] = lambda _: None) -> TopTokens:
        """The best tokens at every masked position, in the order of the positions.

        Args:
            rows: at most `max_position_embeddings` tokens each.
            progress: is told the positions done, after each call.
        """
        count = len(rows.position_row)
        result = TopTokens(np.zeros((count, self._top), np.int32), np.zeros((count, self._top), np.float32))
        for length, chosen in self._calls(rows):
            call = self._inputs(rows, chosen, length)
            ids, scores = self._call(*call)
            result.ids[chosen] = ids.numpy()[: len(chosen)]
            result.scores[chosen] = scores.numpy()[: len(chosen)]
            progress(len(chosen))
        return result

    def _calls(self, rows: MaskedRows) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """L and the positions of each call; the positions of a row are neighbours, mostly in one call."""
        lengths = np.diff(rows.ends, prepend=0)
        longest = self.config.max_position_embeddings
        by_length = {int(n): call_length(int(n), longest) for n in np.unique(lengths)}
        padded = np.array([by_length[int(n)] for n in lengths], np.int64)[rows.position_row]
        for length in np.unique(padded):
            positions = np.flatnonzero(padded == length)
            row = rows.position_row[positions]
            number = np.cumsum(np.diff(row, prepend=row[:1]) != 0)  # of the row among those of this length
            room = max(1, CALL_TOKENS // int(length))
            start = 0
            while start < len(positions):
                end = min(start + CALL_POSITIONS, int(np.searchsorted(number, number[start] + room)))
                yield int(length), positions[start:end]
                start = end

    def _inputs(self, rows: MaskedRows, positions: npt.NDArray[np.int64], length: int) -> list[tf.Tensor]:
        """The tensors of a call, of the shapes of its length whatever it holds."""
        room = max(1, CALL_TOKENS // length)
        needed, number = np.unique(rows.position_row[positions], return_inverse=True)
        token_ids = np.zeros((room, length), np.int32)
        lengths, first = np.ones(room, np.int32), np.zeros(room, np.int32)
        for i, row in enumerate(needed):
            start = rows.ends[row - 1] if row else 0
            tokens = rows.token_ids[start : rows.ends[row]]
            token_ids[i, : len(tokens)] = tokens
            lengths[i], first[i] = len(tokens), rows.first_segment[row]
        flat, kinds = np.zeros(CALL_POSITIONS, np.int32), np.zeros(CALL_POSITIONS, np.int32)
        flat[: len(positions)] = number * length + rows.position_column[positions]
        kinds[: len(positions)] = rows.position_kind[positions]
        return [tf.constant(value) for value in (token_ids, first, lengths, flat, kinds)]
