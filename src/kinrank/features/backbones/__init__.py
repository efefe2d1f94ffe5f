"""What turns an image into a vector: one file a backbone, one line here."""

REGISTRY: dict[str, str] = {
    "efficientnet-lite1": "kinrank.features.backbones.efficientnet_lite1:EfficientNetLite1",
    "dinov2-small": "kinrank.features.backbones.dinov2_small:DinoV2Small",
    "clip-vit-b32": "kinrank.features.backbones.clip_vit_b32:ClipViTB32",
}
DEFAULT = "efficientnet-lite1"
