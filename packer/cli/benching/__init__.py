"""What `packer bench` measures: how fast a dataset is read in every setting, and where the time of a batch goes."""
