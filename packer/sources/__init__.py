"""What a packed dataset is made from. A new source is one module that offers a `Source`."""
