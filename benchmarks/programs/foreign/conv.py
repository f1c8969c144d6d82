"""A residual convolution net in plain JAX, in bf16, its state donated."""

from functools import partial

import jax
import jax.numpy as jnp

BATCH, SIDE, CLASSES = 256, 56, 1000
WIDTHS = (64, 64, 128, 128, 256, 256)


def convolve(x, kernel, stride=1):
    """A 3 × 3 convolution of NHWC."""
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def normalised(x, scale):
    """Over the batch, in f32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    spread = jax.lax.rsqrt(wide.var((0, 1, 2)) + 1e-5)
    return ((wide - mean) * spread * scale).astype(x.dtype)


def loss_of(params, images, labels):
    """Cross entropy."""
    x = images.astype(jnp.bfloat16)
    for block in params["blocks"]:
        stride = 2 if block["one"].shape[2] != block["one"].shape[3] else 1
        read = jax.nn.relu(normalised(x, block["scale"]))
        found = convolve(
            jax.nn.relu(convolve(read, block["one"], stride)), block["two"]
        )
        if stride == 2:
            x = jnp.concatenate([x[:, ::2, ::2], x[:, 1::2, 1::2]], axis=-1)
        x = x + found
    logits = x.mean((1, 2)).astype(jnp.float32) @ params["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@partial(jax.jit, donate_argnums=0)
def train_step(params, images, labels):
    """One step of gradient descent."""
    gradient = jax.grad(loss_of)(params, images, labels)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)


def main():
    """Three steps on zeros."""
    blocks = []
    before = WIDTHS[0]
    for width in WIDTHS:
        one = jnp.zeros((3, 3, before, width))
        two = jnp.zeros((3, 3, width, width))
        blocks.append({"scale": jnp.ones(before), "one": one, "two": two})
        before = width
    params = {"blocks": blocks, "head": jnp.zeros((before, CLASSES))}
    images = jnp.zeros((BATCH, SIDE, SIDE, WIDTHS[0]))
    labels = jnp.zeros(BATCH, jnp.int32)
    for step in range(3):
        params = train_step(params, images, labels)
        print("step", step)


if __name__ == "__main__":
    main()
