"""torchvision next to a torch without CUDA: it is imported from here before anything else imports it.

from cpu_torchvision import torchvision
"""

from __future__ import annotations

import torch

try:
    import torchvision
except RuntimeError:  # its operators were compiled for a torch with CUDA: two have to be known, and are never called
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
