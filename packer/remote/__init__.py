"""What is written and read behind URLs of fsspec: sources and outputs."""
