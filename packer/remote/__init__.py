"""What lies at a URL.

    store       a folder at a URL, each attempt with patience; what is a URL at all
    cache       the folder that fetched files are kept in, with a limit and leases
    mirror      a packed dataset at a URL, fetched into the cache file by file, by digest
    sources     files to be packed, fetched into the cache

fsspec is imported when the first URL is opened.
"""
