"""Table rows of the entries without a session: the library, engines, text."""

from specruntime.abi.table import (
    SHORT_BUFFER,
    Argument,
    Entry,
    Outcome,
    filled,
    given,
    ids_out,
    result,
    text_out,
    value,
)
from specruntime.errors import Status

ENGINE = value("engine", "spx_engine", "from `spx_engine_open`")
_CLOSED = Outcome(Status.INVALID_HANDLE, "the engine is not open")
_NO_TEXT = Outcome(Status.BACKEND_MISSING, "a library for text (tokenizers, jinja2) is not installed")
_BAD_TEXT = Outcome(Status.BUNDLE_INVALID, "the bundle's tokenizer or template cannot be parsed")


def structure_out(name: str, ctype: str, doc: str) -> tuple[Argument, Argument]:
    """A structure to fill and its size in bytes."""
    length = f"{name}_size"
    return filled(name, ctype, length, doc), value(length, "int64_t", f"sizeof({ctype})")


LIBRARY = (
    Entry(
        "spx_abi_version",
        "The version of this interface. It grows when an entry or structure changes.",
        returns="int32_t",
    ),
    Entry(
        "spx_status_name",
        "The name of a status, such as `SESSION_BUSY`.",
        (value("status", "int32_t", "SPX_STATUS_*"), *text_out("UTF-8 with a closing NUL")),
        (SHORT_BUFFER,),
    ),
    Entry(
        "spx_last_error",
        "What went wrong last and what to do about it: one line of text, empty when nothing did. A call that succeeds "
        "leaves the text as it is; this call leaves it too.",
        (
            value(
                "handle",
                "int64_t",
                "an open engine or session: the last failed call on it (a refusal with SESSION_BUSY is not its own); "
                "0: the last failed call of the calling thread, with or without a handle",
            ),
            *text_out("UTF-8 with a closing NUL"),
        ),
        (SHORT_BUFFER, Outcome(Status.INVALID_HANDLE, "not 0 and not an open handle; ask with 0")),
    ),
    Entry(
        "spx_options_init",
        "Fills options with their defaults: what the bundle says, files verified.",
        structure_out("options", "spx_options", "to be filled"),
    ),
    Entry(
        "spx_params_init",
        "Fills sampling parameters with their defaults: greedy, no limit, no log-probabilities.",
        structure_out("params", "spx_params", "to be filled"),
    ),
)

ENGINES = (
    Entry(
        "spx_engine_open",
        "Opens a bundle: checks its files, loads its engines. Takes as long as reading the weights.",
        (
            given("path", "char", "path_length", "UTF-8 path of the bundle directory, without NUL"),
            value("path_length", "int64_t", "bytes of `path`"),
            given("options", "spx_options", "options_size", "the defaults where it is NULL", optional=True),
            value("options_size", "int64_t", "sizeof(spx_options); ignored with NULL"),
            result("engine", "spx_engine", "a handle; never 0, never used again for another"),
        ),
        (
            Outcome(Status.BUNDLE_INVALID, "no bundle there, or one of its files is missing or malformed"),
            Outcome(Status.BUNDLE_HASH_MISMATCH, "a file was changed after the build"),
            Outcome(Status.BUNDLE_TOO_NEW, "written by a newer schema"),
            Outcome(Status.BACKEND_MISSING, "the engine's library is not installed"),
            Outcome(Status.BACKEND_INCOMPATIBLE, "the library, driver or device cannot load it"),
        ),
        "The caller owns the engine until `spx_engine_close`. The bundle directory must stay where it is until then. "
        "Any thread may use it.",
    ),
    Entry(
        "spx_engine_info",
        "Sizes and kinds of an engine.",
        (ENGINE, *structure_out("info", "spx_info", "to be filled")),
        (_CLOSED,),
    ),
    Entry(
        "spx_engine_name",
        "The bundle's name.",
        (ENGINE, *text_out("UTF-8 with a closing NUL")),
        (_CLOSED, SHORT_BUFFER),
    ),
    Entry(
        "spx_engine_eos",
        "The end-of-sequence ids that end an answer.",
        (ENGINE, *ids_out("end-of-sequence ids")),
        (_CLOSED, SHORT_BUFFER),
    ),
    Entry(
        "spx_engine_close",
        "Frees the weights. Sessions are closed first, by their owners: an engine in use is not taken from them.",
        (ENGINE,),
        (_CLOSED, Outcome(Status.WRONG_STATE, "sessions of this engine are open; it stays open too")),
        "The handle is invalid after OK.",
    ),
)

TEXTS = (
    Entry(
        "spx_text_encode",
        "Token ids of plain text.",
        (
            ENGINE,
            given("text", "char", "length", "UTF-8"),
            value("length", "int64_t", "bytes of `text`"),
            *ids_out("token ids"),
        ),
        (_CLOSED, SHORT_BUFFER, _NO_TEXT, _BAD_TEXT),
    ),
    Entry(
        "spx_text_chat",
        "Token ids of a conversation, rendered by the bundle's chat template.",
        (
            ENGINE,
            given("messages", "char", "length", 'UTF-8 JSON: `[{"role": "user", "content": "Hello"}]`'),
            value("length", "int64_t", "bytes of `messages`"),
            value("prompt", "int32_t", "1: end with the opening of the assistant's answer; 0: do not"),
            *ids_out("token ids"),
        ),
        (_CLOSED, SHORT_BUFFER, _NO_TEXT, _BAD_TEXT),
    ),
    Entry(
        "spx_text_decode",
        "Text of token ids without special tokens; bytes that form no character become U+FFFD. For the text of an "
        "answer as it grows use `spx_session_text`.",
        (
            ENGINE,
            given("ids", "int64_t", "count", "token ids"),
            value("count", "int64_t", "number of ids"),
            *text_out("UTF-8 with a closing NUL; the text may hold NUL itself, `needed` counts"),
        ),
        (_CLOSED, SHORT_BUFFER, _NO_TEXT, _BAD_TEXT),
    ),
)
