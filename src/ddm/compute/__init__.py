"""Where work runs and where files go: the engine and its backends, atomic files, memory, progress, validation."""
