"""What lies behind a URL: the store, the cache of what was fetched, and mirrors of datasets and sources."""
