"""The flat API: `spx_` entries with integer handles, statuses and caller-owned memory, as C calls them.

Each entry takes what its row of `specruntime.abi` says, in that order, and returns a `Status`; none raises.
docs/flat-api.md documents them one by one. Importing this loads no engine library and no tokenizer.
"""

from specruntime.abi import SEED_DRAWN, AcceptRule, DraftKind, Finish, SessionState
from specruntime.abi.structs import INFO as _INFO
from specruntime.abi.structs import OPTIONS as _OPTIONS
from specruntime.abi.structs import PARAMS as _PARAMS
from specruntime.abi.structs import STATS as _STATS
from specruntime.errors import Status
from specruntime.flat.answers import (
    spx_session_append,
    spx_session_begin,
    spx_session_generate,
    spx_session_rewind,
    spx_session_round,
    spx_text_chat,
    spx_text_decode,
    spx_text_encode,
)
from specruntime.flat.engines import (
    spx_abi_version,
    spx_engine_close,
    spx_engine_eos,
    spx_engine_info,
    spx_engine_name,
    spx_engine_open,
    spx_last_error,
    spx_options_init,
    spx_params_init,
    spx_status_name,
)
from specruntime.flat.sessions import (
    spx_session_close,
    spx_session_length,
    spx_session_logprobs,
    spx_session_open,
    spx_session_reset,
    spx_session_seed,
    spx_session_state,
    spx_session_stats,
    spx_session_text,
    spx_session_tokens,
)

# dtypes of the structures: `np.zeros(1, flat.PARAMS)` is memory for one.
OPTIONS, INFO, PARAMS, STATS = _OPTIONS.dtype, _INFO.dtype, _PARAMS.dtype, _STATS.dtype

__all__ = [
    "INFO",
    "OPTIONS",
    "PARAMS",
    "SEED_DRAWN",
    "STATS",
    "AcceptRule",
    "DraftKind",
    "Finish",
    "SessionState",
    "Status",
    "spx_abi_version",
    "spx_engine_close",
    "spx_engine_eos",
    "spx_engine_info",
    "spx_engine_name",
    "spx_engine_open",
    "spx_last_error",
    "spx_options_init",
    "spx_params_init",
    "spx_session_append",
    "spx_session_begin",
    "spx_session_close",
    "spx_session_generate",
    "spx_session_length",
    "spx_session_logprobs",
    "spx_session_open",
    "spx_session_reset",
    "spx_session_rewind",
    "spx_session_round",
    "spx_session_seed",
    "spx_session_state",
    "spx_session_stats",
    "spx_session_text",
    "spx_session_tokens",
    "spx_status_name",
    "spx_text_chat",
    "spx_text_decode",
    "spx_text_encode",
]
