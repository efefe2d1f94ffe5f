"""Our own trained weights, a folder each with its card; one line here."""

REGISTRY: dict[str, str] = {
    "csa": "kinrank.models.shipped:CSA",
    "crl": "kinrank.models.shipped:CRL",
}
