"""The structures and enumerations of the ABI, with their documentation."""

from specruntime.abi.enums import DRAFT_KIND_DOCS, SEED_DRAWN, AcceptRule, DraftKind, Finish, SessionState
from specruntime.abi.table import Enumeration, Field, Structure
from specruntime.errors import Status

OPTIONS = Structure(
    "spx_options",
    "How a bundle is opened. Fill it with `spx_options_init`, then change what matters.",
    (
        Field("threads", "int32_t", "CPU threads per engine; 0: what the bundle says"),
        Field("verify", "int32_t", "1: compare the sha256 of every file with the manifest; 0: sizes only", 1),
        Field(
            "provider", "char", 'execution provider, "cpu", "cuda" or "tensorrt"; "": the bundle\'s', count=32
        ),
    ),
)

INFO = Structure(
    "spx_info",
    "What a caller must know of an engine to size its buffers.",
    (
        Field("capacity", "int64_t", "rows of a session's KV cache: prompt and answer together"),
        Field("vocab_size", "int64_t", "token ids are 0 to vocab_size - 1"),
        Field("padded_vocab_size", "int64_t", "columns of the logits; the tail is never emitted"),
        Field("k", "int64_t", "most tokens drafted in a round; 0 without a draft"),
        Field(
            "round_tokens",
            "int64_t",
            "most tokens a round delivers, k + 1: the room `spx_session_round` asks for",
        ),
        Field("layers", "int64_t", "layers of the target"),
        Field("batch", "int64_t", "sequences per session"),
        Field("eos_count", "int64_t", "number of end-of-sequence ids; `spx_engine_eos` gives them"),
        Field("draft_kind", "int32_t", "SPX_DRAFT_*"),
        Field("has_tokenizer", "int32_t", "1: the bundle has a tokenizer, so that `spx_text_*` work"),
        Field("has_chat_template", "int32_t", "1: it has a chat template too, so that `spx_text_chat` works"),
        Field("open_sessions", "int32_t", "sessions opened on this engine and not closed"),
    ),
)

PARAMS = Structure(
    "spx_params",
    "How tokens are chosen and when an answer ends. Fill it with `spx_params_init` (greedy, no limit, a fresh seed for "
    "each answer, which `spx_session_seed` gives), then change "
    "what matters. Order of application: bias, min_tokens, repetition, presence and frequency penalty, temperature, "
    "top_k, top_p, min_p.",
    (
        Field("temperature", "double", "0: greedy; otherwise 1e-6 to 1e6", 0.0),
        Field("top_p", "double", "above 0, at most 1 (off)", 1.0),
        Field("min_p", "double", "0 (off) to 1", 0.0),
        Field("repetition_penalty", "double", "0.01 to 100; 1 is off; counts prompt and answer", 1.0),
        Field("presence_penalty", "double", "-2 to 2; 0 is off; counts the answer", 0.0),
        Field("frequency_penalty", "double", "-2 to 2; 0 is off; counts the answer", 0.0),
        Field(
            "seed",
            "uint64_t",
            "equal seeds give equal tokens, with and without speculation under MATCH; SPX_SEED_DRAWN: a fresh one",
            SEED_DRAWN,
        ),
        Field("top_k", "int64_t", "0: off"),
        Field("max_tokens", "int64_t", "most tokens of the answer; 0: no limit but the capacity"),
        Field("min_tokens", "int64_t", "none of the first min_tokens tokens ends the answer"),
        Field("logprobs", "int32_t", "-1: none; n: of each token and of the n most likely", -1),
        Field("accept", "int32_t", "SPX_ACCEPT_*", int(AcceptRule.MATCH)),
        Field("ignore_eos", "int32_t", "1: end-of-sequence ids do not end the answer"),
        Field("text", "int32_t", "1: decode the answer as it comes; `spx_session_text` gives it"),
    ),
)

STATS = Structure(
    "spx_stats",
    "What the current answer cost so far. tokens == prefills + rounds + accepted; seconds are wall time.",
    (
        Field("prefills", "int64_t", "rounds that fed a prompt: one token each, nothing drafted"),
        Field("rounds", "int64_t", "all other rounds"),
        Field("tokens", "int64_t", "tokens emitted by rounds"),
        Field("discarded", "int64_t", "of them cut off again (an end inside an accepted run)"),
        Field("proposed", "int64_t", "drafted tokens put into a window"),
        Field("evaluated", "int64_t", "of them judged: up to and including the first refused one"),
        Field("accepted", "int64_t", "of them accepted"),
        Field("target_calls", "int64_t", "engine calls of the target"),
        Field("draft_calls", "int64_t", "engine calls of the draft"),
        Field("acceptance_length", "double", "1 + accepted / rounds, measured; 0 before the first round"),
        Field("prefill_seconds", "double", "whole prefill rounds"),
        Field("draft_seconds", "double", "in the draft, its engine calls included"),
        Field("verify_seconds", "double", "feeding the target, its engine calls included"),
        Field("accept_seconds", "double", "sampling and the accept rule"),
        Field("round_seconds", "double", "whole rounds, prefills included"),
        Field("target_seconds", "double", "inside engine calls of the target"),
        Field("draft_engine_seconds", "double", "inside engine calls of the draft"),
    ),
)

STRUCTURES = (OPTIONS, INFO, PARAMS, STATS)

STATUS = Enumeration(
    "spx_status",
    "SPX_STATUS_",
    "Return value of every entry but `spx_abi_version`.",
    Status,
    {
        Status.OK: "the call did what it says",
        Status.INVALID_ARGUMENT: "a value, dtype, shape, length or option that the call does not take",
        Status.INVALID_HANDLE: "a handle that was never opened, is closed, or is of the other kind",
        Status.BUFFER_TOO_SMALL: "a buffer cannot hold the result; the needed size is reported",
        Status.BUNDLE_INVALID: "a bundle file is missing, malformed or points outside the bundle",
        Status.BUNDLE_HASH_MISMATCH: "a bundle file's bytes differ from the manifest",
        Status.BUNDLE_TOO_NEW: "the bundle was written by a newer schema",
        Status.BACKEND_MISSING: "a library that this call needs is not installed",
        Status.BACKEND_INCOMPATIBLE: "the library, driver or device cannot load this engine",
        Status.CAPACITY_EXCEEDED: "more tokens than the bundle's KV capacity",
        Status.WIDTH_EXCEEDED: "more drafted tokens or rows than the bundle's widths",
        Status.EMPTY_PROMPT: "nothing to decode from",
        Status.WRONG_STATE: "the call does not fit the state of the handle",
        Status.SESSION_BUSY: "another thread is inside a call on this session",
        Status.SESSION_POISONED: "an engine call failed in this session before; reset or close it",
        Status.ENGINE_FAILED: "the engine reported an error while running, or logits that are no numbers",
        Status.OUT_OF_MEMORY: "a buffer could not be allocated",
        Status.INTERNAL: "a defect of this library, or an interrupt of the host; the error text names it",
    },
)

STATE = Enumeration(
    "spx_state",
    "SPX_STATE_",
    "Where a session stands between two calls; `spx_session_state` tells it.",
    SessionState,
    {
        SessionState.EMPTY: "no tokens: append a prompt",
        SessionState.FILLED: "tokens, but no answer: begin one, or append more",
        SessionState.ANSWERING: "an answer has begun: rounds may run",
        SessionState.ENDED: "the answer has ended; its tokens stay: append, begin, rewind or reset",
        SessionState.POISONED: "an engine call failed, the cache is undefined: only reset and close change it",
        SessionState.CLOSED: "never reported: the handle is invalid",
    },
)

FINISH = Enumeration(
    "spx_finish",
    "SPX_FINISH_",
    "Why an answer ended; at one token the first that holds.",
    Finish,
    {
        Finish.NONE: "it has not ended",
        Finish.STOP: "an end-of-sequence or stop id, which is its last token",
        Finish.LENGTH: "max_tokens",
        Finish.CAPACITY: "the KV cache is full",
    },
)

ACCEPT = Enumeration(
    "spx_accept",
    "SPX_ACCEPT_",
    "How drafted tokens are judged when sampling.",
    AcceptRule,
    {
        AcceptRule.MATCH: "the target samples with noise keyed by seed and position; equal drafts are kept",
        AcceptRule.REJECTION: "kept with probability min(1, p/q), else resampled; plain decoding in distribution",
    },
)

DRAFT = Enumeration(
    "spx_draft",
    "SPX_DRAFT_",
    "What drafts in a bundle.",
    DraftKind,
    DRAFT_KIND_DOCS,
)

ENUMERATIONS = (STATUS, STATE, FINISH, ACCEPT, DRAFT)
