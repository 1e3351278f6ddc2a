"""A packed dataset behind a URL of fsspec: its files are fetched, whole, into a cache."""
