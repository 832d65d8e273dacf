"""Fills in jobset.yaml, for submit.sh: standard library only, any Python 3.

    render.py NAME TPU_TYPE IMAGE CLAIM SPOT COMMAND...

SPOT is a word or empty. Values become JSON, which YAML reads as it is, so that no value can change
the form.
"""

import json
import pathlib
import string
import sys

# Slices whose hosts have four chips each, by accelerator type; v5p counts TensorCores, two a chip.
_FLAT = {4: "2x2", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBE = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8",
         512: "4x8x8", 1024: "8x8x8"}
_FAMILIES = {
    "v5litepod": ("tpu-v5-lite-podslice", _FLAT, 1),
    "v6e": ("tpu-v6e-slice", _FLAT, 1),
    "v5p": ("tpu-v5p-slice", _CUBE, 2),
}


def main() -> None:
    name, kind, image, claim, spot, *words = sys.argv[1:]
    template = string.Template(pathlib.Path(__file__).with_name("jobset.yaml").read_text())
    accelerator, topology, hosts = slice_of(kind)
    selector = {"cloud.google.com/gke-tpu-accelerator": accelerator,
                "cloud.google.com/gke-tpu-topology": topology}
    tolerations = []
    if spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append({"key": "cloud.google.com/gke-spot", "operator": "Equal",
                            "value": "true", "effect": "NoSchedule"})
    # Kubernetes puts the value of a variable in the place of $(NAME), and $ in that of $$.
    command = [word.replace("$", "$$") for word in words]
    values = {"name": name, "hosts": hosts, "selector": selector, "tolerations": tolerations,
              "image": image, "command": command, "claim": claim}
    print(template.substitute({k: json.dumps(v) for k, v in values.items()}), end="")


def slice_of(kind: str) -> tuple[str, str, int]:
    """(GKE's name of the accelerator, topology, number of hosts) of an accelerator type."""
    family, _, size = kind.partition("-")
    if family in _FAMILIES and size.isdecimal():
        accelerator, topologies, devices = _FAMILIES[family]
        if int(size) in topologies:
            return accelerator, topologies[int(size)], max(1, int(size) // (4 * devices))
    known = [f"{family}-{size}" for family, (_, sizes, _) in _FAMILIES.items() for size in sizes]
    sys.exit(f"error: TPU_TYPE={kind} is none of {', '.join(known)}")


if __name__ == "__main__":
    main()
