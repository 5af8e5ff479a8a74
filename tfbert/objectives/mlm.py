"""The loss of a masked language model, and of telling pairs of texts apart.

B rows, L tokens a row, P masked places a row, H width, V tokens in the vocabulary, M masked places of real tokens.
"""

import tensorflow as tf

from tfbert.model.encoder import INPUTS
from tfbert.model.mlm import MaskedLM
from tfbert.objectives.base import Objective

MASKED = ("masked_positions", "masked_ids", "masked_weights")


class MaskedLanguageModel(Objective):
    """Cross entropy of the masked tokens; with the model's pair head, plus that of the pairs' labels.

    Both are means over the global batch, of masked tokens and of rows (Devlin et al. 2019, arXiv 1810.04805). Logits
    are made for the masked tokens alone, (M, V): most of a row is not masked, and V is the widest dimension there is.

    A batch has `token_ids`, `segment_ids`, `padding_mask` (B, L), `weights` (B,); `masked_positions`, `masked_ids`
    int32 (B, P) and `masked_weights` float32 (B, P), 0 where there is no masked token; with a pair head `labels` int32
    (B,).

    Args:
        model: what is trained.
        pairs: what the pairs are called in the log: nsp (next sentence) or sop (sentence order).
    """

    ragged = (*INPUTS, *MASKED)

    def __init__(self, model: MaskedLM, pairs: str = "nsp"):
        self.model, self.pairs = model, pairs
        self.sums = ("masked_loss", "masked_correct", "masked_tokens")
        if model.has_pair_head:
            self.sums += ("pair_loss", "pair_correct", "pair_rows")

    def weight(self, batch):
        """Of the masked tokens; with a pair head, and of the rows."""
        masked = tf.reduce_sum(batch["masked_weights"])
        return tf.stack([masked, tf.reduce_sum(batch["weights"])]) if self.model.has_pair_head else masked

    def __call__(self, batch, total_weight, seed):
        """As the base. The sum of weight x loss is that of the masked tokens plus the share of the pairs."""
        sums = self.sums_of(batch, training=True, seed=seed)
        share = sums[0] / tf.reshape(total_weight, [-1])[0]
        if self.model.has_pair_head:
            share += sums[3] / total_weight[1]
        return share, tf.stop_gradient(share * tf.reshape(total_weight, [-1])[0]), tf.stop_gradient(sums)

    def sums_of(self, batch, training=False, seed=None):
        """The numbers of `sums` for a batch, each weighted, float32 (len(self.sums),)."""
        hidden = self.model.encoder({name: batch[name] for name in INPUTS}, training=training, seed=seed)
        length = tf.shape(hidden)[1]
        places = tf.where(batch["masked_weights"] > 0)  # (M, 2): row, place
        row = tf.cast(places[:, 0], tf.int32)
        positions, ids, weights = (tf.gather_nd(batch[name], places) for name in MASKED)
        logits = self.model.mlm_logits(hidden, row * length + positions)
        sums = _cross_entropy(logits, ids, weights)
        if self.model.has_pair_head:
            sums += _cross_entropy(self.model.pair_logits(hidden), batch["labels"], batch["weights"])
        return tf.stack(sums)

    def logs(self, totals):
        """Means of the masked tokens: loss in nats, accuracy; and of the pairs."""
        logs = _means(totals, "masked", "tokens", "mlm")
        return logs | _means(totals, "pair", "rows", self.pairs) if self.model.has_pair_head else logs


def _cross_entropy(logits, labels, weights):
    """Weighted sums of loss, of hits and of the weights."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
    return [tf.reduce_sum(weights * losses), tf.reduce_sum(weights * hits), tf.reduce_sum(weights)]


def _means(totals, kind, unit, name):
    weight = max(totals[f"{kind}_{unit}"], 1e-9)
    return {f"{name}_loss": totals[f"{kind}_loss"] / weight, f"{name}_accuracy": totals[f"{kind}_correct"] / weight}
