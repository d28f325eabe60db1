"""The folder of a run: settings, metrics, checkpoints."""
