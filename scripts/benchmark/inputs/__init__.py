"""What is read and converted: arrays, packed datasets and files, made once and kept between runs."""
