"""The engine: rounds, runs, trials and streams as compiled programs."""
