"""Where vectors live: one file a store, one line here."""

REGISTRY: dict[str, str] = {
    "exact": "kinrank.gallery.stores.exact:ExactStore",
    "embedded": "kinrank.gallery.stores.embedded:EmbeddedStore",
}
