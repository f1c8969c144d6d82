"""What `pgle analyze` says of a step in lines."""

from pgle.analyze.layers import Layer, Layers
from pgle.report.analyze import _heavy_layers


def test_the_heaviest_layers_are_named_by_their_computing_time() -> None:
    exchanged = Layer("exchange", "forward", 20.0, 300.0, 1, 0.0, 0.0, None)
    computed = Layer("mlp", "forward", 60.0, 0.0, 1, 0.0, 0.0, None)
    found = _heavy_layers(Layers((exchanged, computed), ()), 100.0)
    assert found == "layers mlp 60 % · exchange 20 %"
