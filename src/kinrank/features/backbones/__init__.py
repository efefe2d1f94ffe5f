"""What turns an image into a vector: one file a backbone, one line here."""

REGISTRY: dict[str, str] = {}
