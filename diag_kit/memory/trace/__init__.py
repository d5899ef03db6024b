"""The run's own model under fake tensors: its step executed without weights or GPU, every allocation recorded.

Only this room imports torch. Its modules do so when they are loaded; other rooms import them inside functions.
"""
