"""Settings, the run directory, training as a library call, the model and what becomes of it."""
