"""Greedy answers of a bundle against the checkpoint in PyTorch.

Adds to what `specruntime.check` found; every token must be the same. Integer weights are other weights: what they
cost is the build's fidelity report, so they are refused here.
"""

from dataclasses import replace

from specexport.reference import PytorchReference, require_reference
from specruntime.bundle import LoadedBundle
from specruntime.check import Advance, Checker
from specruntime.check_report import CheckReport, Comparison
from specruntime.errors import InvalidArgument

AGAINST = "pytorch"


def require_comparable(bundle: LoadedBundle) -> None:
    """Raises what `check_pytorch` would refuse for want of no more than the recipe, config and tokenizer.

    `InvalidArgument` for weights in fewer bits; what the checkpoint's files raise.
    """
    _require_own_weights(bundle)
    require_reference(bundle.root)


def _require_own_weights(bundle: LoadedBundle) -> None:
    precision = bundle.manifest.precision
    if precision not in ("fp32", "fp16", "bf16"):
        raise InvalidArgument(
            f"{bundle.manifest.name} has {precision} weights, PyTorch the checkpoint's own, so their answers may part: "
            "`fidelity` in build.json says how far they are apart; leave --pytorch out"
        )


def check_pytorch(
    bundle: LoadedBundle,
    report: CheckReport,
    *,
    max_new_tokens: int | None = None,
    threads: int | None = None,
    advance: Advance = lambda step: None,
) -> CheckReport:
    """`report` with one comparison per check prompt added: plain greedy decoding against PyTorch's `generate`.

    Raises what loading the checkpoint of the bundle's recipe raises, `InvalidArgument` for weights in fewer bits.
    """
    _require_own_weights(bundle)
    reference = PytorchReference.of_bundle(bundle.root, threads)
    checker = Checker(bundle, max_new_tokens)
    compared: list[Comparison] = []
    for prompt in bundle.manifest.check.prompts:
        advance(f"{prompt.id}, PyTorch")
        ids, plain = checker.plain_answer(prompt)
        expected = reference.answer(ids, checker.greedy, checker.max_new_tokens).token_ids
        if plain.finish_reason == "capacity":  # PyTorch's cache grows on
            expected = expected[: len(plain.token_ids)]
        divergence = checker.diverge(ids, checker.greedy, expected, plain.token_ids)
        compared.append(Comparison(prompt.id, "greedy", AGAINST, len(expected), None, divergence))
    return replace(report, comparisons=(*report.comparisons, *compared))
