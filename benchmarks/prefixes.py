"""What reuse of cache rows saves: time to the first token, turn by turn of a conversation, with and without.

    python benchmarks/prefixes.py BUNDLE

Each turn sends the whole conversation, as clients of an HTTP server do. The modes of `prefix_caching` answer in turns,
each in one slot of its own.
"""

import argparse
from pathlib import Path

from specruntime import LLM, SamplingParams
from specruntime.serving.prefixes import PREFIX_CACHING

QUESTIONS = (
    "You are a librarian. Recommend a book about the sea, in three sentences.",
    "Who wrote it, and when?",
    "What happens in the first chapter?",
    "Name another book like it and say why.",
    "Which of the two is longer?",
    "Thank you. Say goodbye in one sentence.",
)
_WARM = "Say hello."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    params = SamplingParams(max_tokens=options.max_new_tokens)
    served = {
        mode: LLM(options.bundle, max_num_seqs=1, prefix_caching=mode, verify=False)
        for mode in PREFIX_CACHING
    }
    said: dict[str, list[dict[str, str]]] = {mode: [] for mode in served}
    answers: dict[str, list[list[int]]] = {mode: [] for mode in served}
    for llm in served.values():
        llm.chat([{"role": "user", "content": _WARM}], params)
    print(f"| turn | prompt tokens |{''.join(f' {mode} ms | {mode} cached |' for mode in served)}")
    print(f"|---|---|{'---|---|' * len(served)}")
    for turn, question in enumerate(QUESTIONS, start=1):
        cells = []
        for mode, llm in served.items():
            said[mode].append({"role": "user", "content": question})
            (output,) = llm.chat(said[mode], params)
            said[mode].append({"role": "assistant", "content": output.outputs[0].text})
            answers[mode].append(output.outputs[0].token_ids)
            assert output.metrics is not None
            cells += [f"{1e3 * output.metrics.first_seconds:.0f}", str(output.num_cached_tokens)]
        print(f"| {turn} | {len(output.prompt_token_ids)} | {' | '.join(cells)} |")
    for mode, given in answers.items():
        same = sum(one == other for one, other in zip(given, answers["off"], strict=True))
        print(f"{mode}: {same} of {len(given)} answers equal those without reuse")
    for llm in served.values():
        llm.close()


if __name__ == "__main__":
    main()
