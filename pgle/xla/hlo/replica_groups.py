"""Replica groups of collectives as lists of devices, read from XLA's HLO text; and which device
holds which shard of an array.

This file imports only the standard library of Python 3.10 or newer: the hook loads it inside the
user's program.

`xla/xla_data.proto` has three forms:

- lists of devices;
- iota lists: an iota of all devices, reshaped, transposed and cut into rows
  (`xla/hlo/ir/tile_assignment.h`);
- axes of a mesh: groups run along the listed axes, the first one slowest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from math import prod

Groups = tuple[tuple[int, ...], ...]
# part of a mesh axis: (product of the parts before it, its own size)
SubAxis = tuple[int, int]

MAX_DEVICES = 1 << 22
"""Most devices that one collective may name: ten times the largest machine, and still little
memory.
"""


def iota_ids(reshape: Sequence[int], transpose: Sequence[int]) -> list[int]:
    """Return 0, 1, 2 … up to the product of `reshape`, reshaped, transposed and flattened.

    Raises:
        ValueError: `transpose` is not a permutation of the dimensions, or there are too many
            devices.
    """
    count = prod(reshape)
    order = list(transpose) or list(range(len(reshape)))
    if not 0 < count <= MAX_DEVICES or sorted(order) != list(range(len(reshape))):
        raise ValueError(
            f"replica groups of {list(reshape)} devices, transposed by {order}, make no sense"
        )
    ids = [0]
    for dimension in order:
        stride = prod(reshape[dimension + 1 :])
        steps = [stride * at for at in range(reshape[dimension])]
        ids = _sums(ids, steps)
    return ids


def _sums(starts: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Return the sum of each start with each step, the steps of a start together."""
    found: list[int] = []
    for start in starts:
        found += [start + step for step in steps]
    return found


def iota_groups(
    groups: int, size: int, reshape: Sequence[int], transpose: Sequence[int]
) -> Groups:
    """Return `groups` rows of `size` devices.

    Raises:
        ValueError: the numbers do not fit each other.
    """
    ids = iota_ids(reshape or [groups * size], transpose)
    if groups * size != len(ids):
        raise ValueError(
            f"replica groups of {groups} x {size} devices out of {len(ids)} make no sense"
        )
    return _rows(ids, size)


def mesh_groups(
    sizes: Sequence[int], ids: Sequence[int], axes: Sequence[tuple[int, SubAxis | None]]
) -> Groups:
    """Return the groups along axes of a mesh.

    Args:
        sizes: sizes of the mesh's axes, slowest first.
        ids: devices in mesh order; empty means 0, 1, 2 …
        axes: the axes (by index), or parts of axes, along which the devices of a group are.

    Raises:
        ValueError: the mesh has another number of devices, or no such axis.
    """
    devices = ids or iota_ids(sizes, ())
    if len(devices) != prod(sizes):
        raise ValueError(
            f"a device mesh of {list(sizes)} with {len(devices)} devices makes no sense"
        )
    shape: list[int] = []
    place: dict[tuple[int, int, int], int] = {}
    for index, size in enumerate(sizes):
        subs = [sub for axis, sub in axes if axis == index and sub is not None]
        for pre, part in _parts(size, subs):
            place[index, pre, part] = len(shape)
            shape.append(part)
    along: list[int] = []
    for axis, sub in axes:
        size = sizes[axis] if 0 <= axis < len(sizes) else 0
        key = (axis, 1, size) if sub is None else (axis, *sub)
        if key not in place or place[key] in along:
            raise ValueError(
                f"replica groups along mesh axis {axis} of {list(sizes)} make no sense"
            )
        along.append(place[key])
    across = [dimension for dimension in range(len(shape)) if dimension not in along]
    width = prod(shape[dimension] for dimension in along)
    return _rows([devices[at] for at in iota_ids(shape, [*across, *along])], width)


def _parts(size: int, subs: Sequence[SubAxis]) -> list[SubAxis]:
    """Cut an axis at the edges of the given parts.

    Return (product of the slower pieces, size) of each piece, slowest first.
    """
    edges = sorted(
        {1, size} | {pre for pre, _ in subs} | {pre * part for pre, part in subs}
    )
    if any(low <= 0 or high % low for low, high in pairwise(edges)):
        raise ValueError(f"parts {list(subs)} of a mesh axis of {size} make no sense")
    return [(low, high // low) for low, high in pairwise(edges)] or [(1, 1)]


def _rows(ids: Sequence[int], width: int) -> Groups:
    """Cut devices into groups of equal width."""
    return tuple(
        tuple(ids[start : start + width]) for start in range(0, len(ids), width)
    )


STATED = re.compile(
    r"replica_groups=(\{(?:\{[^{}]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\([^ ]*\))? \{[^}]*\})"
)
SEND_ATTRIBUTE = "_xla_send_recv_source_target_pairs"
"""Frontend attribute of a send or receive between devices: its (source, target) pairs."""
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}")
_MESH_AXIS = re.compile(r"'?([^',=]+?)'?=(\d+)")
_AXIS_REF = re.compile(r"'?([^',:\s]+)'?(?::\((\d+)\)(\d+))?")


PAIRS_OF_SEND = re.compile(rf'{SEND_ATTRIBUTE}="?(\{{(?:\{{[^{{}}]*\}},?)*\}})')


def integers(text: str | None) -> tuple[int, ...]:
    """Return the integers in ``1,2,3``."""
    return tuple(map(int, text.split(","))) if text else ()


def groups_from_text(text: str) -> Groups:
    """Return the device groups in ``{{0,1},{2,3}}``, ``[2,4]<=[4,2]T(1,0)`` or ``mesh['x'=2,'y'=4]
    {'y':(1)2}``.

    Raises:
        ValueError: the text has none of these forms.
    """
    if not text:
        return ()
    if text.startswith("{"):
        return tuple(map(integers, re.findall(r"\{([\d,]+)\}", text)))
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        iota = _IOTA.fullmatch(text)
        if iota is None:
            raise ValueError(f"replica groups '{text[:60]}' have an unknown form")
        shape = integers(iota.group(1))
        return iota_groups(
            shape[0], shape[-1], integers(iota.group(2)), integers(iota.group(3))
        )
    sizes = [(name, int(size)) for name, size in _MESH_AXIS.findall(mesh.group(1))]
    order = [name for name, _ in sizes]
    refs: list[tuple[int, SubAxis | None]] = []
    for name, pre, size in _AXIS_REF.findall(mesh.group(3)):
        if name in order:
            part = (int(pre), int(size)) if pre else None
            refs.append((order.index(name), part))
    return mesh_groups([size for _, size in sizes], _mesh_ids(mesh.group(2)), refs)


def _mesh_ids(text: str | None) -> Sequence[int]:
    """Return the devices of a mesh in its order, from a list or an iota; empty if the text has
    none.
    """
    iota = None if text is None else _IOTA.fullmatch(text)
    if iota is None:
        return integers(text)
    return iota_ids(integers(iota.group(1)), integers(iota.group(3)))


Shards = tuple[int, ...]
"""By device, the number of its shard. Devices with equal numbers hold the same. One number alone
means that all devices hold the whole array. Empty if unknown.
"""

WHOLE: Shards = (0,)

_TILES = re.compile(
    r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+)) ?(last_tile.*)?"
)
_COPIES = ("last_tile_dim_replicate", "last_tile_dims={replicated}")


def tiled(devices: Sequence[int], copies: int) -> Shards:
    """Return the shards of a tiling.

    Args:
        devices: devices in the order of the tiles; those with the same tile are adjacent.
        copies: number of devices with the same tile.
    """
    found = [0] * len(devices)
    for place, device in enumerate(devices):
        if not 0 <= device < len(found):
            return ()
        found[device] = place // copies
    return tuple(found)


def along_axes(
    sizes: Sequence[int], ids: Sequence[int], axes: Sequence[tuple[int, SubAxis | None]]
) -> Shards:
    """Return the shards of an array that is divided along mesh axes, given as for `mesh_groups`."""
    rows = mesh_groups(sizes, ids, axes)
    by_place = list(chain.from_iterable(zip(*rows, strict=True)))
    return tiled(by_place, len(rows))


def shards_from_text(text: str) -> Shards:
    """Return the shards in ``replicated``, ``devices=[2,1,2]<=[4] last_tile_dim_replicate`` or
    ``devices=[2]1,0``; empty for anything else.
    """
    if text == "replicated":
        return WHOLE
    found = _TILES.fullmatch(text)
    if found is None:
        return ()
    sizes = integers(found[1])
    is_copied = bool(found[5])
    if is_copied and found[5] not in _COPIES:
        return ()
    try:
        devices = integers(found[4]) or iota_ids(integers(found[2]), integers(found[3]))
    except ValueError:
        return ()
    return tiled(devices, sizes[-1] if is_copied else 1)
