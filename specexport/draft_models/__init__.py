"""Draft models in PyTorch: one module per kind, used alike by training, by export and as the reference of parity.

`Eagle3Draft`, `EagleDraft` and `MedusaHeads` compute. Knows nothing of recipes or backends.
"""

from specexport.draft_models.configs import EagleConfig, MedusaConfig
from specexport.draft_models.eagle import EagleDraft
from specexport.draft_models.eagle3 import Eagle3Draft
from specexport.draft_models.embeddings import embeddings_sha256
from specexport.draft_models.masks import unrolled_mask
from specexport.draft_models.medusa import MedusaHeads

__all__ = [
    "Eagle3Draft",
    "EagleConfig",
    "EagleDraft",
    "MedusaConfig",
    "MedusaHeads",
    "embeddings_sha256",
    "unrolled_mask",
]
