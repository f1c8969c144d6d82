"""The device groups of a collective, from the four forms in which HLO protos state them.

The forms come from `xla/xla_data.proto`: lists, iota lists (`xla/hlo/ir/tile_assignment.h`: an iota of all devices,
reshaped, transposed, cut into rows) and axes of a mesh (groups run along the listed axes, the first one slowest).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from pgle.errors import UserError

if TYPE_CHECKING:
    from pgle.xla.protos import hlo_pb2

Groups = tuple[tuple[int, ...], ...]
SubAxis = tuple[int, int]  # part of a mesh axis: (product of the parts before it, its own size)

MAX_DEVICES = 1 << 22
"""Bound on the devices that one collective may name: ten times the largest machine, and still little memory."""


def iota_ids(reshape: Sequence[int], transpose: Sequence[int]) -> list[int]:
    """0, 1, 2 … up to the product of `reshape`, reshaped, transposed and flattened.

    Raises:
        UserError: the numbers are no permutation of that many dimensions, or ask for too many devices.
    """
    count = prod(reshape)
    order = list(transpose) or list(range(len(reshape)))
    if not 0 < count <= MAX_DEVICES or sorted(order) != list(range(len(reshape))):
        raise UserError(f"replica groups of {list(reshape)} devices, transposed by {order}, make no sense")
    ids = [0]
    for dimension in order:
        stride = prod(reshape[dimension + 1 :])
        ids = [start + stride * at for start in ids for at in range(reshape[dimension])]
    return ids


def iota_groups(groups: int, size: int, reshape: Sequence[int], transpose: Sequence[int]) -> Groups:
    """Iota groups: `groups` rows of `size` devices."""
    ids = iota_ids(reshape or [groups * size], transpose)
    if groups * size != len(ids):
        raise UserError(f"replica groups of {groups} x {size} devices out of {len(ids)} make no sense")
    return _rows(ids, size)


def mesh_groups(sizes: Sequence[int], ids: Sequence[int], axes: Sequence[tuple[int, SubAxis | None]]) -> Groups:
    """Groups along axes of a mesh.

    Args:
        sizes: of the mesh's axes, slowest first.
        ids: devices in mesh order; empty: 0, 1, 2 …
        axes: the axes (by index) or parts of axes along which the devices of a group lie.
    """
    devices = ids or iota_ids(sizes, ())
    if len(devices) != prod(sizes):
        raise UserError(f"a device mesh of {list(sizes)} with {len(devices)} devices makes no sense")
    shape: list[int] = []
    place: dict[tuple[int, int, int], int] = {}
    for index, size in enumerate(sizes):
        for pre, part in _parts(size, [sub for axis, sub in axes if axis == index and sub is not None]):
            place[index, pre, part] = len(shape)
            shape.append(part)
    along: list[int] = []
    for axis, sub in axes:
        key = (axis, 1, sizes[axis] if 0 <= axis < len(sizes) else 0) if sub is None else (axis, *sub)
        if key not in place or place[key] in along:
            raise UserError(f"replica groups along mesh axis {axis} of {list(sizes)} make no sense")
        along.append(place[key])
    across = [dimension for dimension in range(len(shape)) if dimension not in along]
    width = prod(shape[dimension] for dimension in along)
    return _rows([devices[at] for at in iota_ids(shape, [*across, *along])], width)


def _parts(size: int, subs: Sequence[SubAxis]) -> list[SubAxis]:
    """An axis cut at the edges of the given parts: (product before, size) of each piece, slowest first."""
    edges = sorted({1, size} | {pre for pre, _ in subs} | {pre * part for pre, part in subs})
    if any(low <= 0 or high % low for low, high in pairwise(edges)):
        raise UserError(f"parts {list(subs)} of a mesh axis of {size} make no sense")
    return [(low, high // low) for low, high in pairwise(edges)] or [(1, 1)]


def _rows(ids: Sequence[int], width: int) -> Groups:
    return tuple(tuple(ids[start : start + width]) for start in range(0, len(ids), width))


def groups_of(item: hlo_pb2.HloInstructionProto) -> Groups:
    """The replica groups of an instruction proto; empty where it states none."""
    if item.HasField("mesh_axes_replica_group_list"):
        stated = item.mesh_axes_replica_group_list
        mesh = stated.mesh
        ids: Sequence[int] = mesh.device_ids
        if not ids and mesh.HasField("iota_transform"):
            ids = iota_ids(mesh.iota_transform.reshape_dims, mesh.iota_transform.transpose_perm)
        axes = [
            (axis.mesh_axis_index, (axis.sub_axis_info.pre_size, axis.sub_axis_info.size))
            if axis.HasField("sub_axis_info")
            else (axis.mesh_axis_index, None)
            for axis in stated.axes
        ]
        return mesh_groups([axis.size for axis in mesh.axes], ids, axes)
    if item.HasField("iota_collective_device_list"):
        return _iota(item.iota_collective_device_list)
    if item.HasField("collective_device_list"):
        devices = item.collective_device_list
        if devices.HasField("iota_replica_group_list"):
            return _iota(devices.iota_replica_group_list)
        return tuple(tuple(group.replica_ids) for group in devices.replica_groups)
    return tuple(tuple(group.replica_ids) for group in item.replica_groups)


def _iota(proto: hlo_pb2.IotaReplicaGroupListProto) -> Groups:
    return iota_groups(
        proto.num_replica_groups, proto.num_devices_per_group, proto.iota_reshape_dims, proto.iota_transpose_perm
    )
