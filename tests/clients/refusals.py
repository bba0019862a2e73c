"""What the tests of rate limits with drivers share: the nodes' own counts of what they refused."""

KINDS = ("read", "write")


def refusals(nodes):
    """How many reads, and how many writes, these nodes have refused as coordinators. A request that
    a driver sends again counts again."""
    metric = "scylla_storage_proxy_coordinator_{}_rate_limited"
    return [int(sum(node.metric(metric.format(kind)) for node in nodes)) for kind in KINDS]
