"""What lies behind a URL.

    store       a folder behind a URL, each attempt with patience; what is a URL at all
    cache       the folder that fetched files are kept in, with a limit and leases
    mirror      a packed dataset behind a URL, fetched into the cache file by file, by digest
    sources     files to be packed, fetched into the cache

fsspec is imported when the first URL is opened.
"""
