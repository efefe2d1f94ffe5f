"""The re-ranking methods: one file a method (a small family may share one), one line here."""

REGISTRY: dict[str, str] = {
    "none": "kinrank.rerankers.none:NoRerank",
    "affinity": "kinrank.rerankers.affinity:Affinity",
    "csa": "kinrank.rerankers.csa:CSA",
    "aqe": "kinrank.rerankers.expansion:AQE",
    "aqewd": "kinrank.rerankers.expansion:AQEwD",
    "alphaqe": "kinrank.rerankers.expansion:AlphaQE",
}
