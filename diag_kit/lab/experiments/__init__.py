"""One file for each experiment; found by being here. See ``catalog`` for what a file holds."""
