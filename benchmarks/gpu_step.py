"""A training step of our classifier, on TensorFlow or on JAX as KERAS_BACKEND says, compiled as a whole by XLA."""

from typing import Any

import keras

from benchmarks.gpu_cases import flags, time_cases
from tfbert.losses import cross_entropy
from tfbert.model.config import BertConfig
from tfbert.model.heads import Classifier

PACKAGES = ("keras", "tensorflow", "jax", "jaxlib")
CLIP_NORM = 1.0


def main() -> None:
    args = flags()
    policy = keras.DTypePolicy("mixed_bfloat16")
    if keras.backend.backend() == "tensorflow":
        place, step, wait = _tensorflow(args, policy)
    else:
        place, step, wait = _jax(args, policy)
    time_cases(args, place, step, wait, PACKAGES)


def _tensorflow(args: Any, policy: keras.DTypePolicy) -> tuple[Any, Any, Any]:
    """A step with our optimizer, whose kernels update the variables in place."""
    import tensorflow as tf

    from tfbert.optim import make_optimizer

    model = Classifier(BertConfig.load(args.config), 3, head="cls", dtype=policy)
    optimizer = make_optimizer("adamw", model.trainable_variables, weight_decay=0.01, clip_norm=CLIP_NORM)
    number = tf.Variable(0, dtype=tf.int32)

    @tf.function(jit_compile=True, autograph=False)
    def step(batch: Any) -> Any:
        number.assign_add(1)
        with tf.GradientTape() as tape:
            logits = model(_inputs(batch), training=True, seed=tf.stack([number, 0]))
            loss = tf.reduce_mean(cross_entropy(batch["labels"], logits))
        gradients = tape.gradient(loss, optimizer.trained)
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], tf.constant(2e-5))
        return loss

    def place(batch: Any) -> Any:
        return {name: tf.constant(values) for name, values in batch.items()}

    return place, step, lambda loss: loss.numpy()


def _inputs(batch: Any) -> Any:
    return {name: values for name, values in batch.items() if name != "labels"}


def _jax(args: Any, policy: keras.DTypePolicy) -> tuple[Any, Any, Any]:
    """A functional step over the state of model and optimizer, whose memory is used again."""
    import jax

    model = Classifier(BertConfig.load(args.config), 3, head="cls", dtype=policy)
    optimizer = keras.optimizers.AdamW(2e-5, weight_decay=0.01, global_clipnorm=CLIP_NORM)
    optimizer.build(model.trainable_variables)

    def loss_of(trainable: Any, other: Any, batch: Any, seed: Any) -> Any:
        logits, other = model.stateless_call(trainable, other, _inputs(batch), training=True, seed=seed)
        return cross_entropy(batch["labels"], logits).mean(), other

    def step(state: Any, batch: Any, number: Any) -> Any:
        trainable, other, moments = state
        seed = jax.numpy.stack([number, jax.numpy.zeros_like(number)])
        (loss, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, other, batch, seed)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return (trainable, other, moments), loss

    compiled = jax.jit(step, donate_argnums=0)
    held = {
        "state": tuple(
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        ),
        "number": 0,
    }

    def advance(batch: Any) -> Any:
        held["state"], loss = compiled(held["state"], batch, jax.numpy.int32(held["number"]))
        held["number"] += 1
        return loss

    return jax.device_put, advance, lambda loss: loss.block_until_ready()


if __name__ == "__main__":
    main()
