"""The README.md beside a trained draft: what it is for, from what and how it came about, and what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specexport.draft_models.files import CONFIG_NAME, WEIGHTS_NAME

CARD_NAME = "README.md"


@dataclass(frozen=True)
class Facts:
    """Of one training run. `acceptance`: by drafted token, the share of chains accepted up to it."""

    kind: str
    target: str
    command: str
    prompts: str
    dialogues: int
    answer_tokens: int
    held_out: int
    tokens_trained: int
    minutes: float
    machine: str
    parameters: int
    acceptance: Sequence[float]

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a round that drafts as many in a chain: those accepted, and the target's own."""
        return 1 + sum(self.acceptance)


def write_card(directory: Path, facts: Facts) -> None:
    size = (directory / WEIGHTS_NAME).stat().st_size / 1e6
    shares = "".join(f"| {place} | {share:.3f} |\n" for place, share in enumerate(facts.acceptance, 1))
    text = f"""# {directory.name}

A draft of kind `{facts.kind}` for {facts.target}: {facts.parameters / 1e6:.1f} million weights of its own,
`{WEIGHTS_NAME}` ({size:.1f} MB, fp16) and `{CONFIG_NAME}`.

- **Data**: {facts.dialogues} prompts ({facts.prompts}) and the target's own answers to them, {facts.answer_tokens}
  tokens; {facts.held_out} of the dialogues were held out.
- **Command**: `{facts.command}`
- **Training**: {facts.tokens_trained} tokens in {facts.minutes:.0f} minutes on {facts.machine}.
- **Licence**: that of the target and of the prompts.

Acceptance on the held-out dialogues, greedy, a chain of {len(facts.acceptance)} drafted tokens, counted in PyTorch
on the target's own answers: {facts.accepted_length:.2f} tokens a round.

| drafted token | accepted up to it |
|---|---|
{shares}"""
    (directory / CARD_NAME).write_text(text, encoding="utf-8")
