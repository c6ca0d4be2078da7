"""Draft models in PyTorch: one module per kind, used alike by training, by export and as the reference of parity.

`Eagle3Draft`, `Eagle1Draft` and `MedusaHeads` compute; `load_eagle` and `load_medusa` read the published formats
strictly; `save_draft` writes ours. Knows nothing of recipes or backends.
"""

from specexport.draft_models.configs import EagleConfig, MedusaConfig, embeddings_sha256
from specexport.draft_models.eagle import Eagle1Draft, Eagle3Draft
from specexport.draft_models.loading import load_eagle, load_medusa
from specexport.draft_models.medusa import MedusaHeads
from specexport.draft_models.saving import save_draft
from specexport.draft_models.tapped_layers import StatedLayers, TappedFeatures, default_layer_ids
from specexport.draft_models.targets import DraftTarget, draft_target

__all__ = [
    "DraftTarget",
    "Eagle1Draft",
    "Eagle3Draft",
    "EagleConfig",
    "MedusaConfig",
    "MedusaHeads",
    "StatedLayers",
    "TappedFeatures",
    "default_layer_ids",
    "draft_target",
    "embeddings_sha256",
    "load_eagle",
    "load_medusa",
    "save_draft",
]
