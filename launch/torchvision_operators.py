"""Lets torchvision be imported beside a torch that it was not built for.

Its compiled operators cannot be loaded then, and `import torchvision` fails where it describes the
operator `nms`, which no text model calls. vLLM's multi-modal models (Qwen3.5 among them) import it.
launch/setup_vllm.sh puts this module into the environment, where a .pth file imports it at start.
"""

import sys

_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class _BeforeTorchvision:
    """Declares the operators when torchvision is first looked for; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator, signature in _OPERATORS.items():
                torch.library.define(f"torchvision::{operator}", signature)
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
