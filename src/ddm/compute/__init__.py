"""The engine and its backends, atomic files, locked folders, tensors on disk, memory, progress, checks."""
