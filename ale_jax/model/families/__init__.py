"""The families of models that checkpoints are read from and written for, a small file each."""
