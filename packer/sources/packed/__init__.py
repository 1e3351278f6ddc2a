"""Packed datasets as sources: to pack again, to append, to export."""
