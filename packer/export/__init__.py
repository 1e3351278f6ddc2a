"""Back from a packed dataset to files, of the kinds that `dataset` lists.

report = export("div2k.packed", "div2k.png")
report = export("rows.packed", "rows", to="hdf5", fields=["x", "y"])
"""

from packer.export.dataset import KINDS, VALUES, ExportOptions, ExportReport, export

__all__ = ["KINDS", "VALUES", "ExportOptions", "ExportReport", "export"]
