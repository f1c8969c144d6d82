"""Training steps of four frameworks on any mesh, abstract or of devices; as a program each runs on
eight devices.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

WIDE, HIDDEN, BATCH = 512, 2048, 256


def _spec(leaf: Any) -> PartitionSpec:
    return PartitionSpec("data") if leaf.ndim == 2 else PartitionSpec()


def _on(mesh: Any) -> Callable[[Any], Any]:
    def put(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _spec(leaf))
        )

    return put


def _held(mesh: Any, tree: Any) -> Any:
    """Results lie as the arguments do, so that a program compiles its step once."""

    def hold(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, _spec(leaf)))

    return jax.tree.map(hold, tree)


BATCHES = jax.ShapeDtypeStruct((BATCH, WIDE), "float32")


def plain(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    def train_step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean((jax.nn.gelu(x @ w["up"]) @ w["down"] - x) ** 2)

        return jax.tree.map(lambda a, g: a - 1e-3 * g, w, jax.grad(loss)(w))

    sizes = {"up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE)}
    w = {name: jax.ShapeDtypeStruct(size, "float32") for name, size in sizes.items()}
    return jax.jit(train_step, donate_argnums=0), jax.tree.map(_on(mesh), (w, BATCHES))


def linen(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(WIDE)(nn.gelu(nn.Dense(HIDDEN)(x)))

    net = Net()

    def train_step(w: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean((net.apply(w, x) - x) ** 2))(w)
        return _held(mesh, jax.tree.map(lambda a, g: a - 1e-3 * g, w, gradient))

    w = jax.eval_shape(net.init, jax.random.key(0), BATCHES)
    return jax.jit(train_step, donate_argnums=0), jax.tree.map(_on(mesh), (w, BATCHES))


def nnx(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up, self.down = (
                nnx.Linear(WIDE, HIDDEN, rngs=rngs),
                nnx.Linear(HIDDEN, WIDE, rngs=rngs),
            )

        def __call__(self, x: Any) -> Any:
            return self.down(nnx.gelu(self.up(x)))

    @nnx.jit
    def train_step(net: Any, x: Any) -> None:
        gradient, state = (
            nnx.grad(lambda net: jnp.mean((net(x) - x) ** 2))(net),
            nnx.state(net),
        )
        nnx.update(
            net, _held(mesh, jax.tree.map(lambda a, g: a - 1e-3 * g, state, gradient))
        )

    graph, state = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))
    return train_step, (
        nnx.merge(graph, jax.tree.map(_on(mesh), state)),
        _on(mesh)(BATCHES),
    )


def equinox(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    import equinox as eqx

    @eqx.filter_jit
    def train_step(net: Any, x: Any) -> Any:
        gradient = eqx.filter_grad(lambda net: jnp.mean((jax.vmap(net)(x) - x) ** 2))(
            net
        )
        return _held(
            mesh, eqx.apply_updates(net, jax.tree.map(lambda g: -1e-3 * g, gradient))
        )

    net = eqx.filter_eval_shape(
        eqx.nn.MLP, WIDE, WIDE, HIDDEN, 1, key=jax.random.key(0)
    )
    return train_step, jax.tree.map(_on(mesh), (net, BATCHES))


KINDS = {"plain": plain, "linen": linen, "nnx": nnx, "equinox": equinox}


def main(kind: str) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    step, args = KINDS[kind](mesh)

    def made(leaf: Any) -> Any:
        shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return (
            jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding)
            if shape
            else leaf
        )

    state, x = jax.tree.map(made, args)
    for _ in range(3):
        updated = step(state, x)
        state = state if updated is None else updated


if __name__ == "__main__":
    main(sys.argv[1])
