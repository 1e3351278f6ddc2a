"""What lies behind a URL of fsspec: datasets, sources and outputs in a bucket; files are fetched whole into a cache."""
