/* Decodes a prompt with a bundle and streams the answer: what a C program needs of specruntime, from open to close.
 *
 *     cc decode.c -I DIR -L DIR -lspecruntime -Wl,-rpath,DIR -o decode      (DIR: python -m specruntime.clib -o DIR)
 *     ./decode my.bundle "Hello" 64
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specruntime.h"

/* Prints what failed and why; `handle` is 0, an engine or a session. */
static int report(const char *what, spx_status status, int64_t handle)
{
    char text[1024] = "";
    int64_t needed = 0;
    spx_last_error(handle, text, (int64_t)sizeof text, &needed);
    fprintf(stderr, "%s: status %d: %s\n", what, (int)status, text);
    return 1;
}

/* The token ids of a text. The caller frees `*ids`. */
static spx_status encode(spx_engine engine, const char *text, int64_t **ids, int64_t *count)
{
    const int64_t length = (int64_t)strlen(text);
    spx_status status = spx_text_encode(engine, text, length, NULL, 0, count);
    if (status != SPX_STATUS_OK && status != SPX_STATUS_BUFFER_TOO_SMALL)
        return status;
    *ids = malloc((size_t)(*count > 0 ? *count : 1) * sizeof **ids);
    if (*ids == NULL)
        return SPX_STATUS_OUT_OF_MEMORY;
    return spx_text_encode(engine, text, length, *ids, *count, count);
}

/* Writes the text that became complete since the last call. */
static spx_status show_text(spx_session session)
{
    char text[4096];
    int64_t needed = 0;
    const spx_status status = spx_session_text(session, text, (int64_t)sizeof text, &needed);
    if (status == SPX_STATUS_OK) {
        fwrite(text, 1, (size_t)(needed - 1), stdout);
        fflush(stdout);
    }
    return status;
}

/* Runs rounds until the answer ends. `tokens` has room for `room` ids, as many as one round may deliver. */
static spx_status answer(spx_session session, int64_t *tokens, int64_t room)
{
    int32_t finish = SPX_FINISH_NONE;
    spx_status status = SPX_STATUS_OK;
    while (status == SPX_STATUS_OK && finish == SPX_FINISH_NONE) {
        int64_t count = 0;
        status = spx_session_round(session, tokens, room, &count, NULL, NULL, &finish);
        if (status == SPX_STATUS_OK)
            status = show_text(session);
    }
    putchar('\n');
    return status;
}

static int decode(spx_engine engine, const char *prompt, int64_t max_tokens)
{
    spx_info info;
    spx_params params;
    spx_stats stats;
    spx_session session = 0;
    int64_t *ids = NULL, *tokens = NULL, count = 0;
    spx_status status = spx_engine_info(engine, &info, (int64_t)sizeof info);

    if (status == SPX_STATUS_OK)
        status = spx_params_init(&params, (int64_t)sizeof params);
    if (status == SPX_STATUS_OK)
        status = encode(engine, prompt, &ids, &count);
    if (status == SPX_STATUS_OK)
        status = spx_session_open(engine, 1, &session);
    if (status != SPX_STATUS_OK) {
        free(ids);
        return report("prepare", status, engine);
    }

    params.max_tokens = max_tokens;
    params.text = 1;
    status = spx_session_append(session, ids, count);
    free(ids);
    if (status == SPX_STATUS_OK)
        status = spx_session_begin(session, &params, (int64_t)sizeof params, NULL, 0, NULL, NULL, 0);
    tokens = malloc((size_t)info.round_tokens * sizeof *tokens);
    if (status == SPX_STATUS_OK && tokens != NULL)
        status = answer(session, tokens, info.round_tokens);
    free(tokens);
    if (status != SPX_STATUS_OK)
        report("decode", status, session);
    else if (spx_session_stats(session, &stats, (int64_t)sizeof stats) == SPX_STATUS_OK)
        fprintf(stderr, "%lld tokens in %lld rounds\n", (long long)stats.tokens, (long long)(stats.rounds + stats.prefills));
    spx_session_close(session);
    return status == SPX_STATUS_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    spx_engine engine = 0;
    spx_status status;
    int failed;

    if (argc != 4) {
        fprintf(stderr, "usage: %s BUNDLE PROMPT MAX_TOKENS\n", argv[0]);
        return 2;
    }
    if (spx_abi_version() != SPX_ABI_VERSION) {
        fprintf(stderr, "the library has ABI version %d, this program was built for %d\n", (int)spx_abi_version(),
                SPX_ABI_VERSION);
        return 1;
    }
    status = spx_engine_open(argv[1], (int64_t)strlen(argv[1]), NULL, 0, &engine);
    if (status != SPX_STATUS_OK)
        return report("open", status, 0);
    failed = decode(engine, argv[2], strtoll(argv[3], NULL, 10));
    status = spx_engine_close(engine);
    if (status != SPX_STATUS_OK)
        return report("close", status, engine);
    return failed;
}
