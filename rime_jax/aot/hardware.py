"""What a chip of each TPU generation can do, the slices that libtpu knows, and peaks of GPUs."""

import dataclasses
import math
import re
from typing import Any

INSTALL = "pip install 'rime_jax[aot]'"


class TopologyError(ValueError):
    """A slice that cannot be compiled for; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip of a generation.

    Attributes:
      hbm_gib: capacity, GiB.
      peak_flops: bfloat16 FLOP/s of the matrix units.
      hbm_bytes: bytes/s between HBM and the cores.
      ici_bytes: bytes/s that leave the chip over all its links together (half of what the vendor
        calls bidirectional).
      devices: jax devices of a chip. Two cores are one device (megacore) up to v5p, and two devices
        that share the figures above from tpu7x on.
      host: (x, y, z) chips of one host in a slice of several hosts.
      largest: chips of the largest slice that there can be; a whole pod, but for v5p, whose pod of
        8,960 is not given out as one.
      options: what `get_topology_desc` needs beyond the name.
      source: page of the vendor's documentation.
    """

    hbm_gib: float
    peak_flops: float
    hbm_bytes: float
    ici_bytes: float
    devices: int
    host: tuple[int, int, int]
    largest: int
    options: dict[str, Any]
    source: str


# v4's page gives no bandwidth of the links: six of 50 GB/s each way (Jouppi et al. 2023, "TPU v4",
# table 4). v6e's page speaks of 32 GB; the comparison on tpu7x's page of 32 GiB, as for v5p of 95.
CHIPS = {
    "v4": Chip(32, 275e12, 1200e9, 300e9, 1, (2, 2, 1), 4096,
               {"chip_config_name": "megacore"},
               "https://docs.cloud.google.com/tpu/docs/v4"),
    "v5e": Chip(16, 197e12, 819e9, 200e9, 1, (2, 2, 1), 256, {},
                "https://docs.cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip(95, 459e12, 2765e9, 600e9, 1, (2, 2, 1), 6144, {},
                "https://docs.cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip(32, 918e12, 1640e9, 400e9, 1, (2, 2, 1), 256, {},
                "https://docs.cloud.google.com/tpu/docs/v6e"),
    "tpu7x": Chip(192, 2307e12, 7380e9, 600e9, 2, (2, 2, 1), 9216, {},
                  "https://docs.cloud.google.com/tpu/docs/tpu7x"),
}


# Name of a jax device (`device_kind`) → the generation; tpu7x's device is half a chip.
_KINDS = {
    "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
    "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "tpu7x",
}

# Beginning of a GPU's name → dense bfloat16 FLOP/s of its tensor cores, by NVIDIA's data sheets
# (nvidia.com/en-us/data-center/{a100,h100,h200}), which count with sparsity, twice that, from H100
# on. The first that fits counts.
_GPU_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of a jax device; None where it is not known."""
    if device_kind in _KINDS:
        chip = CHIPS[_KINDS[device_kind]]
        return chip.peak_flops / chip.devices
    return next((peak for name, peak in _GPU_PEAKS.items() if device_kind.startswith(name)), None)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A named slice without its hardware.

    Attributes:
      name: as given, `v5p:4x4x4`.
      chip: of its generation.
      devices: that programs are compiled for; no data can be put on them.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]

    def host(self) -> "Slice":
        """The slice that is one of its hosts: what the sampler of a process is compiled for."""
        if self.hosts == 1:
            return self
        generation, _, layout = self.name.partition(":")
        sizes = [min(int(n), b) for n, b in zip(layout.split("x"), self.chip.host,
                                               strict=False)]
        return describe(f"{generation}:{'x'.join(map(str, sizes))}")

    @property
    def hosts(self) -> int:
        return 1 + max(d.process_index for d in self.devices)

    @property
    def host_devices(self) -> int:
        """Devices of one host."""
        return len(self.devices) // self.hosts


def describe(name: str) -> Slice:
    """The slice `<generation>:<x>x<y>[x<z>]`, sizes in chips.

    Raises:
      TopologyError: libtpu is missing, or does not know such a slice.
    """
    generation, _, layout = name.partition(":")
    sizes = layout.split("x")
    if generation not in CHIPS or not all(re.fullmatch("[1-9][0-9]{0,4}", s) for s in sizes):
        raise TopologyError(
            f"--topology {name}: write <generation>:<chips along each axis>, e.g. v5e:4x4 or "
            f"v5p:4x4x4; the generations are {', '.join(CHIPS)}")
    chip = CHIPS[generation]
    axes = 3 if generation in ("v4", "v5p", "tpu7x") else 2
    if len(sizes) != axes:
        raise TopologyError(f"--topology {name}: slices of {generation} have {axes} axes")
    chips = [int(s) for s in sizes]
    if math.prod(chips) > chip.largest:
        raise TopologyError(f"--topology {name}: {math.prod(chips)} chips; the largest slice of "
                            f"{generation} has {chip.largest}")
    return Slice(name, chip, tuple(_topology(name, chip, chips).devices))


def _topology(name: str, chip: Chip, sizes: list[int]) -> Any:
    from jax.experimental import topologies

    bounds = [min(n, b) for n, b in zip(sizes + [1] * (3 - len(sizes)), chip.host, strict=True)]
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=name, chips_per_host_bounds=bounds, **chip.options)
    except Exception as error:  # jax and libtpu raise many kinds
        if "lockfile" in str(error):
            raise TopologyError(
                "another process uses libtpu; wait for it, or set ALLOW_MULTIPLE_LIBTPU_LOAD=1 "
                "(safe where there is no TPU)") from error
        if not _has_libtpu():
            raise TopologyError(
                f"compiling for a TPU needs libtpu; install it with: {INSTALL}") from error
        raise TopologyError(f"--topology {name}: libtpu refuses it: {error}") from error


def _has_libtpu() -> bool:
    try:
        import libtpu  # noqa: F401
    except ImportError:
        return False
    return True
