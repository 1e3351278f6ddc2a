"""Images, in files or in LMDB folders of encoded ones; one or more fields, partners paired by name."""
