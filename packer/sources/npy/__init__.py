"""NumPy arrays: .npy files and .npz archives."""
