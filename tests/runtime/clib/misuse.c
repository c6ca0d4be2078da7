/* Calls that C makes by mistake: each has its status, and the library goes on. Prints the number of the first check
 * that fails, or "sound". argv[1] is a bundle. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "specruntime.h"

static int checks = 0;
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) {                                                                                            \
            printf("check %d failed: %s\n", checks, #condition);                                                       \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static spx_session shared;
static int busy, unexpected;

static void *rounds(void *unused)
{
    int64_t tokens[64], count;
    int32_t finish = SPX_FINISH_NONE;
    int turn;
    (void)unused;
    for (turn = 0; turn < 40 && finish == SPX_FINISH_NONE; turn++) {
        const spx_status status = spx_session_round(shared, tokens, 64, &count, NULL, NULL, &finish);
        if (status == SPX_STATUS_SESSION_BUSY)
            __sync_fetch_and_add(&busy, 1);
        else if (status != SPX_STATUS_OK && status != SPX_STATUS_WRONG_STATE)
            __sync_fetch_and_add(&unexpected, 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    spx_engine engine = 0;
    spx_session session = 0;
    spx_params params;
    int64_t ids[8] = {97, 98, 99, 97, 98, 99, 97, 98}, count = 0, needed = 0;
    int32_t state = -1;
    char text[512];
    pthread_t threads[4];
    int index;

    if (argc != 2)
        return 2;
    CHECK(spx_abi_version() == SPX_ABI_VERSION);
    CHECK(spx_engine_open(NULL, 5, NULL, 0, &engine) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_engine_open(argv[1], -1, NULL, 0, &engine) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_engine_open("nowhere", 7, NULL, 0, &engine) == SPX_STATUS_BUNDLE_INVALID);
    CHECK(spx_last_error(0, text, 4, &needed) == SPX_STATUS_BUFFER_TOO_SMALL && needed > 4);
    CHECK(spx_last_error(0, text, sizeof text, &needed) == SPX_STATUS_OK && strstr(text, "nowhere") != NULL);
    CHECK(spx_engine_open(argv[1], (int64_t)strlen(argv[1]), NULL, 0, NULL) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_engine_open(argv[1], (int64_t)strlen(argv[1]), NULL, 0, &engine) == SPX_STATUS_OK);
    CHECK(spx_session_open(engine + 1, 1, &session) == SPX_STATUS_INVALID_HANDLE);
    CHECK(spx_session_open(engine, 1, &session) == SPX_STATUS_OK);
    CHECK(spx_session_append(session, NULL, 3) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_session_append(session, ids, -1) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_session_append(session, ids, INT64_MAX) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_session_append(session, NULL, 0) == SPX_STATUS_EMPTY_PROMPT);
    CHECK(spx_session_append(session, ids, 8) == SPX_STATUS_OK);
    CHECK(spx_params_init(&params, (int64_t)sizeof params - 1) == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_params_init(&params, (int64_t)sizeof params) == SPX_STATUS_OK);
    params.temperature = -1;
    CHECK(spx_session_begin(session, &params, (int64_t)sizeof params, NULL, 0, NULL, NULL, 0)
          == SPX_STATUS_INVALID_ARGUMENT);
    CHECK(spx_session_round(session, ids, 8, &count, NULL, NULL, &state) == SPX_STATUS_WRONG_STATE);
    params.temperature = 0;
    params.ignore_eos = 1;
    CHECK(spx_session_begin(session, &params, (int64_t)sizeof params, NULL, 0, NULL, NULL, 0) == SPX_STATUS_OK);
    CHECK(spx_session_round(session, ids, 1, &count, NULL, NULL, &state) == SPX_STATUS_BUFFER_TOO_SMALL && count > 1);

    shared = session; /* one session, four threads: each call is made whole or refused */
    for (index = 0; index < 4; index++)
        CHECK(pthread_create(&threads[index], NULL, rounds, NULL) == 0);
    for (index = 0; index < 4; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    CHECK(unexpected == 0);

    CHECK(spx_engine_close(engine) == SPX_STATUS_WRONG_STATE);
    CHECK(spx_session_close(session) == SPX_STATUS_OK);
    CHECK(spx_session_close(session) == SPX_STATUS_INVALID_HANDLE);
    CHECK(spx_engine_close(engine) == SPX_STATUS_OK);
    puts("sound");
    return 0;
}
