"""The errors a user can cause. Each says what was wrong, where, and what to do."""


class KvhouseError(Exception):
    """Base of every error that the command line prints as one line."""


class SpecError(KvhouseError):
    """A model's description is missing, damaged or impossible."""


class UnsupportedModel(SpecError):
    """A model that is understood well enough to know that its KV cannot be counted."""


class RequestRejected(KvhouseError):
    """A request that can never be served with this pool and these limits."""


class TraceError(KvhouseError):
    """A trace that cannot be read; the message names the line."""
