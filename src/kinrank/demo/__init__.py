"""Pictures that the package renders itself, so that a newcomer sees the main job with no download."""
