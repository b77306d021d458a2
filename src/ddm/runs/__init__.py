"""Run directories: their config, how a run is made, opened, stored, verified and planned."""
