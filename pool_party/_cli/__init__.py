"""The command `pool-party`."""
