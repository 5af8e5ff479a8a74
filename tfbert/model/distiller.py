"""Which layer of a teacher a student's layer learns from, and how their states are compared.

TinyBERT (Jiao et al. 2020, arXiv 1909.10351): hidden states through a trained projection, unnormalised attention
scores, and the embeddings. Layers are numbered from 1; 0 is the output of the embeddings.

    B rows, L tokens a row, H width, A heads, M layers of the student, N layers of the teacher.
"""

from collections.abc import Sequence

import keras
from keras import ops

from tfbert.errors import ConfigError
from tfbert.losses import scores_error, states_error
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.heads import Classifier
from tfbert.model.layers import initializer, package

MAPS = ("uniform", "top", "bottom")
HEADS = ("same", "mean")  # how attention is compared
PARTS = ("attention", "hidden", "embedding")


def layer_map(kind: str, num_layers: int, num_teacher_layers: int) -> tuple[int, ...]:
    """The teacher's layer for each layer of the student, both from 1.

    Args:
        kind: uniform (every N / M-th), top (the last M), bottom (the first M), or layers joined by commas.
        num_layers: M.
        num_teacher_layers: N.

    Raises:
        ConfigError: there is no such map.
    """
    received = f"Received: {kind!r} for {num_layers} layers of the student and {num_teacher_layers} of the teacher."
    if kind not in MAPS:
        words = [word.strip() for word in kind.split(",")]
        if not all(word.isdecimal() for word in words):
            raise ConfigError(f"--layer_map is one of {', '.join(MAPS)}, or layers joined by commas. {received}")
        layers = tuple(map(int, words))
        if len(layers) != num_layers or any(not 1 <= layer <= num_teacher_layers for layer in layers):
            raise ConfigError(
                f"--layer_map names a layer of the teacher, from 1 to {num_teacher_layers}, for each of the student's. "
                f"{received}"
            )
        if any(a >= b for a, b in zip(layers, layers[1:], strict=False)):
            raise ConfigError(f"--layer_map names layers in ascending order. {received}")
        return layers
    if not 1 <= num_layers <= num_teacher_layers:
        raise ConfigError(f"A student has at least one layer and no more than its teacher. {received}")
    if kind == "uniform":
        if num_teacher_layers % num_layers:
            raise ConfigError(
                f"A uniform layer map needs a number of layers that divides the teacher's. {received} Take another "
                "student, or --layer_map top, bottom, or layers joined by commas."
            )
        step = num_teacher_layers // num_layers
        return tuple(step * m for m in range(1, num_layers + 1))
    first = num_teacher_layers - num_layers if kind == "top" else 0
    return tuple(range(first + 1, first + num_layers + 1))


def check_heads(student: BertConfig, teacher: BertConfig, heads: str) -> None:
    """Refuses attention of other numbers of heads, unless their mean is compared.

    Raises:
        ConfigError: they differ.
    """
    if heads == "same" and student.num_attention_heads != teacher.num_attention_heads:
        raise ConfigError(
            "Attention is compared head by head. Received: "
            f"{student.num_attention_heads} heads of the student, {teacher.num_attention_heads} of the teacher. Give "
            "--attention_heads mean to compare the mean over the heads, or --attention_weight 0."
        )


def copy_layers(student: Classifier, teacher: BertEncoder, layers: Sequence[int]) -> int:
    """Fills a student's encoder from some layers of a teacher of the same width; returns the number of tensors.

    Raises:
        ConfigError: their sizes differ in more than the number of layers.
    """
    encoder = student.encoder
    names = {layer.name: layer.name for layer in encoder.layers if not layer.name.startswith("Encoder-")}
    if encoder.config.is_pre_ln:
        names["Encoder-Final-Norm"] = "Encoder-Final-Norm"
    for m, layer in enumerate(layers, 1):
        for part in ("MultiHeadSelfAttention", "MultiHeadSelfAttention-Norm", "FeedForward", "FeedForward-Norm"):
            names[f"Encoder-{m}-{part}"] = f"Encoder-{layer}-{part}"
    count = 0
    for mine, theirs in names.items():
        if mine == "NSP-Dense" and not teacher.has_pooler:
            continue
        weights = teacher.get_layer(theirs).get_weights()
        target = encoder.get_layer(mine)
        if [tuple(w.shape) for w in target.weights] != [w.shape for w in weights]:
            raise ConfigError(f"A student that starts from its teacher's layers has its sizes. Received: other {mine}.")
        target.set_weights(weights)
        count += len(weights)
    return count


@keras.saving.register_keras_serializable(package)
class Projection(keras.layers.Layer):
    """x @ kernel: vectors of a student in the space of its teacher. Trained, and no part of the student."""

    def __init__(self, width, teacher_width, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.width, self.teacher_width, self.stddev = width, teacher_width, stddev
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            self.kernel = self.add_weight(
                name="kernel", shape=(self.width, self.teacher_width), initializer=initializer(self.stddev)
            )
            self.built = True

    def call(self, x):  # (B, L, H) -> (B, L, teacher's H)
        length = ops.shape(x)[1]
        y = ops.matmul(ops.reshape(ops.cast(x, self.compute_dtype), (-1, self.width)), self.kernel)
        return ops.reshape(y, (-1, length, self.teacher_width))

    def get_config(self):
        return super().get_config() | {
            "width": self.width,
            "teacher_width": self.teacher_width,
            "stddev": self.stddev,
        }


class LayerMatcher:
    """Compares the states of a student with those of one teacher.

    Args:
        student: sizes.
        teacher: sizes.
        layers: the teacher's layer for each of the student's.
        heads: same (head by head) or mean (mean over the heads).
        number: of the teacher, for the names of the projections.

    Attributes:
        projections: of hidden states and of embeddings; none where the widths are equal.
    """

    def __init__(
        self, student: BertConfig, teacher: BertConfig, layers: Sequence[int], heads: str = "same", number: int = 0
    ):
        self.layers, self.heads = tuple(layers), heads
        self.projections: list[Projection] = []
        if student.hidden_size != teacher.hidden_size:
            self.projections = [
                Projection(
                    student.hidden_size, teacher.hidden_size, student.initializer_range, name=f"teacher_{number}_{part}"
                )
                for part in ("hidden", "embedding")
            ]

    def __call__(self, states, teacher_states, mask):
        """The three errors of each row.

        Args:
            states: of the student, as `BertEncoder.states` gives them.
            teacher_states: of the teacher.
            mask: 1 on tokens, 0 on padding, (B, L).

        Returns:
            By name (`PARTS`), float32 (B,): attention and hidden are summed over the student's layers.
        """
        hidden, scores = states
        teacher_hidden, teacher_scores = teacher_states
        project, project_embedding = self.projections or (lambda x: x, lambda x: x)
        return {
            "attention": sum(
                scores_error(self._heads(mine), self._heads(teacher_scores[layer - 1]), mask)
                for mine, layer in zip(scores, self.layers, strict=True)
            ),
            "hidden": sum(
                states_error(project(mine), teacher_hidden[layer], mask)
                for mine, layer in zip(hidden[1:], self.layers, strict=True)
            ),
            "embedding": states_error(project_embedding(hidden[0]), teacher_hidden[0], mask),
        }

    def _heads(self, scores):
        return ops.mean(scores, axis=1, keepdims=True) if self.heads == "mean" else scores
