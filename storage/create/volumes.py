"""Volumes like KiTS19's after preprocessing: float32 CT intensities with two kidneys and a tumour labelled.

Sizes follow MLPerf Storage's UNet3D: mean and standard deviation of a sample's bytes are given; as real volumes' sizes
do, they lean to the small side (a gamma distribution). Air is constant and tissue noisy, so they compress as scans do.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.sample import Allocate, Sample

BYTES_PER_VOXEL = 5
"""A float32 intensity and a uint8 label."""
AIR, TISSUE, KIDNEY, TUMOUR = -2.34, -0.4, 0.9, 0.5
"""Intensities, normalised as the reference does: (HU clipped to [-79, 304] - 101) / 76.9."""
NOISE = 0.6
_LESIONS = (
    ((0.5, 0.45, 0.28), (0.22, 0.09, 0.07), 1, KIDNEY),
    ((0.5, 0.45, 0.72), (0.22, 0.09, 0.07), 1, KIDNEY),
    ((0.45, 0.50, 0.26), (0.07, 0.05, 0.05), 2, TUMOUR),
)
"""Centre and half axes as shares of the extents, label, intensity."""


def volume_shape(seed: int, index: int, params: Mapping[str, int]) -> tuple[int, int, int]:
    """Depth, height and width in voxels; none less than `patch_size`."""
    rng = np.random.Generator(np.random.SFC64([seed, index]))
    mean, stdev = params["mean_bytes"], params["stdev_bytes"]
    voxels = rng.gamma((mean / stdev) ** 2, stdev**2 / mean) / BYTES_PER_VOXEL
    flatness = rng.uniform(0.6, 1.0)
    width = (voxels / flatness) ** (1 / 3)
    least = params["patch_size"]
    return max(round(flatness * width), least), max(round(width), least), max(round(width), least)


def volume_bytes(shape: tuple[int, int, int]) -> int:
    """Bytes of image and label."""
    return int(np.prod(shape)) * BYTES_PER_VOXEL


def _body(height: int, width: int) -> npt.NDArray[np.bool_]:
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    inside: npt.NDArray[np.bool_] = (y / 0.75) ** 2 + (x / 0.95) ** 2 < 1
    return inside


def volume_sample(index: int, allocate: Allocate, seed: int, params: Mapping[str, int]) -> Sample:
    """A volume that depends on seed and index alone: image float32 and label uint8, both (1, D, H, W)."""
    shape = volume_shape(seed, index, params)
    voxels = int(np.prod(shape))
    memory = allocate("volume", volume_bytes(shape))
    image = memory[: 4 * voxels].view(np.float32).reshape(shape)
    label = memory[4 * voxels : 5 * voxels].reshape(shape)
    rng = np.random.Generator(np.random.SFC64([seed, index, 1]))
    body = _body(*shape[1:])
    noise = np.where(body, np.float32(NOISE), np.float32(0))
    base = np.where(body, np.float32(TISSUE - NOISE / 2), np.float32(AIR))
    for plane in image:
        rng.random(out=plane, dtype=np.float32)
        plane *= noise
        plane += base
    label.fill(0)
    for centre, axes, value, intensity in _LESIONS:
        shift = rng.uniform(-0.05, 0.05, 3)
        scale = rng.uniform(0.8, 1.2)
        _add_ellipsoid(image, label, np.asarray(centre) + shift, np.asarray(axes) * scale, value, intensity - TISSUE)
    return Sample(f"case_{index:05d}", {"image": image[None], "label": label[None]})


def _add_ellipsoid(
    image: npt.NDArray[np.float32],
    label: npt.NDArray[np.uint8],
    centre: npt.NDArray[np.float64],
    axes: npt.NDArray[np.float64],
    value: int,
    brighter: float,
) -> None:
    """Label an ellipsoid and raise its intensity, plane by plane within its bounding box."""
    extents = np.asarray(image.shape)
    low = np.maximum(((centre - axes) * extents).astype(int), 0)
    high = np.minimum(((centre + axes) * extents).astype(int) + 1, extents)
    depth, height, width = (
        ((np.arange(low[axis], high[axis]) + 0.5) / extents[axis] - centre[axis]) / axes[axis] for axis in range(3)
    )
    flat = height[:, None] ** 2 + width[None, :] ** 2
    box = np.s_[low[1] : high[1], low[2] : high[2]]
    for plane, at in zip(range(low[0], high[0]), depth, strict=True):
        inside = flat + at * at < 1
        image[plane][box] += np.float32(brighter) * inside
        label[plane][box][inside] = value
