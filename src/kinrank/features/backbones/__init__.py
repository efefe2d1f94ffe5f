"""What turns an image into a vector: one file a backbone, one line here."""

REGISTRY: dict[str, str] = {
    "efficientnet-lite1": "kinrank.features.backbones.efficientnet_lite1:EfficientNetLite1",
    "dinov2-small": "kinrank.features.backbones.dinov2_small:DinoV2Small",
    "clip-vit-b32": "kinrank.features.backbones.clip_vit_b32:ClipViTB32",
    "gl18-tl-resnet50-gem-w": "kinrank.features.backbones.cirtorch:GL18ResNet50",
    "gl18-tl-resnet101-gem-w": "kinrank.features.backbones.cirtorch:GL18ResNet101",
    "gl18-tl-resnet152-gem-w": "kinrank.features.backbones.cirtorch:GL18ResNet152",
    "retrievalSfM120k-vgg16-gem": "kinrank.features.backbones.cirtorch:SfmVGG16",
}
DEFAULT = "efficientnet-lite1"
