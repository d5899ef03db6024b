"""The errors a person can meet. Each message says what is wrong, where, and what to do.

    DiagKitError (ValueError)
    ├── EvidenceError   what was pointed at can't be read as evidence
    ├── SettingsError   a settings file has a wrong key, type or value
    ├── EntryError      a failure entry breaks the rules of the encyclopedia
    ├── StateError      the user's data folder can't be read or written
    └── StopReading     no error: a progress callback raises it to end the reading early
"""


class DiagKitError(ValueError):
    """Root of every error meant for a person; its text is one line."""


class EvidenceError(DiagKitError):
    """A path, file or pasted text can't be used as evidence."""


class SettingsError(DiagKitError):
    """Settings of a run are malformed."""


class UnshardableError(SettingsError):
    """torch can't shard this model, so that its sharding can't be traced."""


class EntryError(DiagKitError):
    """A failure entry is malformed."""


class StateError(DiagKitError):
    """Checklist state or history can't be kept."""


class StopReading(DiagKitError):  # noqa: N818 (a wish, no error)
    """Raised by a progress callback: reading ends, what was read is judged, and the coverage says what was not."""
