"""The sample runs, each a function that returns the files of its folder."""
