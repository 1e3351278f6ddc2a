"""What a packed dataset is. FORMAT.md next to this file is the specification.

Importing this package loads numpy, msgspec and the codecs, and none of torch, click, h5py, PIL, plyfile.
"""
