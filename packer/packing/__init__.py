"""From a plan to finished shards: what `convert` and the other verbs that write are made of."""
