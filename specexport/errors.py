"""Exceptions of the build side.

    SpecError (specruntime.errors)
    └── BuildError
        ├── RecipeError            a recipe file that cannot be read, or a value it may not hold
        ├── SourceError            a checkpoint's files cannot be had: missing, unreachable, wrong hash
        ├── CheckpointUnsupported  the files were read, but this model cannot become a bundle
        ├── TokenizerMismatch      target and draft do not share one token table
        ├── PassError              a graph is not what a pass requires or ensures
        ├── ParityError            the exported graph does not compute what the checkpoint computes
        ├── FidelityError          weights in fewer bits cost more than the recipe allows
        ├── TrainingRefused        prompts, answers or features that no draft can be trained on
        └── BundleNotWritten       the bundle could not be put in place; what was there before is untouched

Every message says what was found, what was expected and what to do, in one line per mistake.
"""

from typing import Generic, TypeVar

from specruntime.errors import SpecError, Status

Found = TypeVar("Found")

_LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    """Return what a library raised, as one line of bounded length."""
    return shorten_reason(str(error)) or type(error).__name__


def shorten_reason(words: str) -> str:
    """`words` as one line: whole sentences where some fit, else whole words and an ellipsis."""
    text = " ".join(words.split())
    if len(text) <= _LONGEST_REASON:
        return text
    cut = text[:_LONGEST_REASON]
    sentences, ends, _ = cut.rpartition(". ")
    return f"{sentences}." if ends else f"{cut.rpartition(' ')[0] or cut} ..."


class Interrupted(KeyboardInterrupt, Generic[Found]):
    """Measuring was interrupted; `found` is what had been measured until then, marked as partial."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found


class BuildError(SpecError):
    """Base of everything a recipe, a file or the network can cause while building."""

    status = Status.INVALID_ARGUMENT

    def __init__(self, message: str, *, key: str | None = None) -> None:
        """`key`: of the recipe that has to change, where one is known; the message begins with it."""
        super().__init__(message if key is None else f"{key}: {message}")
        self.key, self.message = key, message


class RecipeError(BuildError):
    """`lines` holds one line per mistake; the message is those lines."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class SourceError(BuildError):
    pass


class CheckpointUnsupported(BuildError):
    pass


class TokenizerMismatch(BuildError):
    pass


class PassError(BuildError):
    pass


class ParityError(BuildError):
    pass


class FidelityError(BuildError):
    pass


class BundleNotWritten(BuildError):
    pass


class TrainingRefused(BuildError):
    pass
