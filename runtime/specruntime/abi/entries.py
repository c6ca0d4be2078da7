"""Table rows of the entries that work on a session."""

from specruntime.abi.enums import SessionState as State
from specruntime.abi.table import (
    SHORT_BUFFER,
    Argument,
    Entry,
    StatusMeaning,
    filled,
    given,
    ids_out,
    result,
    text_out,
    value,
)
from specruntime.errors import Status

ENGINE = value("engine", "spx_engine", "from `spx_engine_open`")
_CLOSED = StatusMeaning(Status.INVALID_HANDLE, "the engine is not open")
_NO_TEXT = StatusMeaning(Status.BACKEND_MISSING, "a library for text (tokenizers, jinja2) is not installed")
_BAD_TEXT = StatusMeaning(Status.BUNDLE_INVALID, "the bundle's tokenizer or template cannot be parsed")


def structure_out(name: str, ctype: str, doc: str) -> tuple[Argument, Argument]:
    """Return a structure to fill and its size in bytes."""
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
        (SHORT_BUFFER, StatusMeaning(Status.INVALID_HANDLE, "not 0 and not an open handle; ask with 0")),
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
            StatusMeaning(
                Status.BUNDLE_INVALID, "no bundle there, or one of its files is missing or malformed"
            ),
            StatusMeaning(Status.BUNDLE_HASH_MISMATCH, "a file was changed after the build"),
            StatusMeaning(Status.BUNDLE_TOO_NEW, "written by a newer schema"),
            StatusMeaning(Status.BACKEND_MISSING, "the engine's library is not installed"),
            StatusMeaning(Status.BACKEND_INCOMPATIBLE, "the library, driver or device cannot load it"),
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
        (_CLOSED, StatusMeaning(Status.WRONG_STATE, "sessions of this engine are open; it stays open too")),
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


_SESSION = value("session", "spx_session", "from `spx_session_open`")
_SHARED = (
    StatusMeaning(Status.INVALID_HANDLE, "the session is not open"),
    StatusMeaning(Status.SESSION_BUSY, "another thread is inside a call on this session; try again after it"),
)
_POISONED = StatusMeaning(
    Status.SESSION_POISONED, "an engine call failed before: reset or close", (State.POISONED,)
)
_FAILED = StatusMeaning(
    Status.ENGINE_FAILED,
    "the engine failed, or its logits are no numbers; the tokens are those before the failed round",
    (State.POISONED,),
)
_FULL = StatusMeaning(Status.CAPACITY_EXCEEDED, "the KV cache was full before the call; rewind or reset")
_NO_ANSWER = StatusMeaning(Status.WRONG_STATE, "no answer has begun, or it has ended")
_COUNT = result("count", "int64_t", "tokens delivered; with BUFFER_TOO_SMALL the room that is needed")
_FINISH = result("finish", "int32_t", "SPX_FINISH_*: NONE while the answer goes on")
_SHORT_ROUND = StatusMeaning(
    Status.BUFFER_TOO_SMALL,
    "`capacity` is below what one round may deliver (`count` tells it); no round was run",
)
_BANNED = StatusMeaning(
    Status.INVALID_ARGUMENT,
    "an argument that the call does not take, or the parameters ban every token",
)
_ROUND_OUTCOMES = (
    StatusMeaning(Status.OK, "", (State.ANSWERING, State.ENDED)),
    _BANNED,
    *_SHARED,
    _POISONED,
    _NO_ANSWER,
    _SHORT_ROUND,
    _FULL,
    _FAILED,
)

LIFETIME = (
    Entry(
        "spx_session_open",
        "A session: the buffers of one generation on an engine. All of them are allocated here; a round allocates "
        "none.",
        (
            ENGINE,
            value(
                "speculate", "int32_t", "1: draft as the bundle says; 0: decode plainly on the same engine"
            ),
            result("session", "spx_session", "a handle; never 0, never used again for another"),
        ),
        (StatusMeaning(Status.INVALID_HANDLE, "the engine is not open"),),
        "The caller owns the session until `spx_session_close`. One thread at a time may use it; different sessions "
        "may be used at once.",
    ),
    Entry(
        "spx_session_reset",
        "Clears all tokens and the poisoned state.",
        (_SESSION,),
        (StatusMeaning(Status.OK, "", (State.EMPTY,)), *_SHARED),
    ),
    Entry(
        "spx_session_close",
        "Frees the session's buffers.",
        (_SESSION,),
        (StatusMeaning(Status.OK, "", (State.CLOSED,)), *_SHARED),
        "The handle is invalid after OK.",
    ),
)

READS = (
    Entry(
        "spx_session_state",
        "Where the session stands.",
        (_SESSION, result("state", "int32_t", "SPX_STATE_*")),
        _SHARED,
    ),
    Entry(
        "spx_session_length",
        "How many tokens are committed, prompts and answers together.",
        (_SESSION, result("length", "int64_t", "tokens")),
        _SHARED,
    ),
    Entry(
        "spx_session_tokens",
        "Copies the committed tokens from index `start` to the end.",
        (
            _SESSION,
            value("start", "int64_t", "0 to the length"),
            filled("tokens", "int64_t", "capacity", "token ids"),
            value("capacity", "int64_t", "ids that `tokens` can hold; 0 asks for `count` alone"),
            result("count", "int64_t", "number of ids; also set by BUFFER_TOO_SMALL"),
        ),
        (*_SHARED, SHORT_BUFFER),
    ),
    Entry(
        "spx_session_logprobs",
        "Log-probabilities, in nats, of the tokens that the last round or generate delivered, under the raw logits.",
        (
            _SESSION,
            filled("logprobs", "double", "capacity", "of each token"),
            value("capacity", "int64_t", "tokens that `logprobs` has room for"),
            result("count", "int64_t", "number of tokens n; also set by BUFFER_TOO_SMALL"),
            filled("top_ids", "int64_t", "top_capacity", "[n, logprobs] most likely ids, best first"),
            filled("top_logprobs", "double", "top_capacity", "[n, logprobs] of those"),
            value("top_capacity", "int64_t", "elements of both; 0 with NULL leaves them out"),
            result("top_count", "int64_t", "n * logprobs; also set by BUFFER_TOO_SMALL", optional=True),
        ),
        (
            *_SHARED,
            SHORT_BUFFER,
            StatusMeaning(
                Status.WRONG_STATE, "the answer asked for none, or no round was run since the tokens changed"
            ),
        ),
    ),
    Entry(
        "spx_session_text",
        "Takes the text that became complete since it was last taken, for answers begun with `text` = 1. A character "
        "whose bytes are not all there waits for them; an end token adds no text. With BUFFER_TOO_SMALL it stays.",
        (_SESSION, *text_out("UTF-8 with a closing NUL; the text may hold NUL itself, `needed` counts")),
        (*_SHARED, SHORT_BUFFER, StatusMeaning(Status.WRONG_STATE, "no answer with `text` = 1")),
    ),
    Entry(
        "spx_session_seed",
        "The seed of the answer begun last: the one of its parameters, or the one drawn for it, below 2**53; 0 for a "
        "greedy answer without one. Given as the seed of the same parameters it gives the same answer.",
        (_SESSION, result("seed", "uint64_t", "the seed")),
        (*_SHARED, StatusMeaning(Status.WRONG_STATE, "no answer has begun since the session was opened")),
    ),
    Entry(
        "spx_session_stats",
        "What the current answer cost so far; zeros before the first.",
        (_SESSION, *structure_out("stats", "spx_stats", "to be filled")),
        _SHARED,
    ),
)

ANSWERS = (
    Entry(
        "spx_session_append",
        "Adds prompt tokens; the next round feeds them. Ends the current answer. For the next turn of a conversation "
        "append only its new tokens.",
        (
            _SESSION,
            given("ids", "int64_t", "count", "token ids"),
            value("count", "int64_t", "number of ids, 1 or more"),
        ),
        (
            StatusMeaning(Status.OK, "", (State.FILLED,)),
            *_SHARED,
            _POISONED,
            StatusMeaning(Status.EMPTY_PROMPT, "`count` is 0"),
            StatusMeaning(Status.CAPACITY_EXCEEDED, "they do not all fit; none was added"),
        ),
    ),
    Entry(
        "spx_session_begin",
        "Begins an answer to the committed tokens, with its own noise, penalties and statistics.",
        (
            _SESSION,
            given("params", "spx_params", "params_size", "the defaults where it is NULL", optional=True),
            value("params_size", "int64_t", "sizeof(spx_params); ignored with NULL"),
            given("stop_ids", "int64_t", "stop_count", "ids that end the answer, as its last token"),
            value("stop_count", "int64_t", "number of stop ids"),
            given("bias_ids", "int64_t", "bias_count", "ids whose logits are biased, each once"),
            given("biases", "double", "bias_count", "added to those logits; -INFINITY bans"),
            value("bias_count", "int64_t", "number of biases"),
        ),
        (
            StatusMeaning(Status.OK, "", (State.ANSWERING,)),
            *_SHARED,
            _POISONED,
            StatusMeaning(Status.EMPTY_PROMPT, "no tokens are committed"),
            StatusMeaning(Status.BACKEND_MISSING, "`text` = 1 and a library for text is not installed"),
            StatusMeaning(Status.BUNDLE_INVALID, "`text` = 1 and the bundle's tokenizer cannot be parsed"),
        ),
        "All arrays are copied.",
    ),
    Entry(
        "spx_session_round",
        "Runs one round: delivers 1 to k + 1 tokens of the answer. The first round feeds the prompt. Where the answer "
        "ends inside a round, the tokens after its end are dropped, from the session too.",
        (
            _SESSION,
            filled("tokens", "int64_t", "capacity", "token ids"),
            value(
                "capacity",
                "int64_t",
                "ids that `tokens` can hold: at least `round_tokens` of `spx_info`, or what max_tokens leaves",
            ),
            _COUNT,
            result("proposed", "int64_t", "drafted tokens put to the target", optional=True),
            result("accepted", "int64_t", "of them accepted, before the answer's end is cut", optional=True),
            _FINISH,
        ),
        _ROUND_OUTCOMES,
    ),
    Entry(
        "spx_session_generate",
        "Runs rounds until the answer ends or `tokens` has no room for another round; call it again while `finish` is "
        "NONE. A buffer of max_tokens holds the whole answer. When a round fails, `count` tells how many tokens the "
        "rounds before it delivered; they stay in the session.",
        (
            _SESSION,
            filled("tokens", "int64_t", "capacity", "token ids"),
            value("capacity", "int64_t", "ids that `tokens` can hold; as for `spx_session_round`"),
            _COUNT,
            _FINISH,
        ),
        _ROUND_OUTCOMES,
    ),
    Entry(
        "spx_session_rewind",
        "Forgets every token from index `length` on. Ends the current answer.",
        (_SESSION, value("length", "int64_t", "tokens to keep, 0 to the length")),
        (StatusMeaning(Status.OK, "", (State.EMPTY, State.FILLED)), *_SHARED, _POISONED),
    ),
)
