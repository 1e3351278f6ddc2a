"""A shard against its manifest, a dataset against its sources, and building damaged parts again."""
