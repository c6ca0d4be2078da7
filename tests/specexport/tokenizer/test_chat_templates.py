"""A chat template that a bundle renders otherwise than transformers is refused before any weights are read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from specexport.checkpoints import loading as checkpoint
from specexport.checkpoints.random_model import byte_tokenizer
from specexport.errors import CheckpointUnsupported
from specexport.recipe.schema import Target
from specexport.tokenizer.chat_templates import check_chat_template
from specexport.tokenizer.files import describe_tokenizer
from specruntime.errors import InvalidArgument
from specruntime.text.chat_template import ChatTemplate
from specruntime.text.codec import TextCodec

EACH = "{% for message in messages %}"
GENERATION = (
    EACH
    + "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% endif %}"
    "{% endfor %}"
)
JSON = EACH + "{{ message | tojson(ensure_ascii=False, separators=(',', ':'), sort_keys=True) }}{% endfor %}"

# The lines of published templates that call the clock.
SMOLLM3 = (
    '{%- set today = strftime_now("%d %B %Y") -%}\n{{- "Today Date: " ~ today ~ \'\\n\' -}}\n'
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}{%- endfor -%}"
)
MISTRAL = (
    '{%- set today = strftime_now("%Y-%m-%d") %}\n'
    '{%- set default = "The current date is " + today + "." %}\n{{- bos_token }}{{ default }}'
)


def files(root: Path, template: str) -> Path:
    """The tokenizer files of a checkpoint with this template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.pad_token = "<|pad|>"
    tokenizer.save_pretrained(root / "files")
    return root / "files"


@pytest.mark.parametrize("template", [GENERATION, JSON, "{{ pad_token }}{{ unk_token is defined }}"])
def test_what_transformers_renders_is_rendered_alike(tmp_path: Path, template: str) -> None:
    place = files(tmp_path, template)
    assert check_chat_template("model", place) == ()
    TextCodec.open(tmp_path, describe_tokenizer(tmp_path, "files")).render_chat(
        [{"role": "user", "content": "x"}]
    )


def test_all_named_tokens_reach_the_manifest(tmp_path: Path) -> None:
    spec = describe_tokenizer(files(tmp_path, JSON).parent, "files")
    assert (
        spec.special_tokens["pad_token"] == "<|pad|>" and spec.special_tokens["eos_token"] == spec.eos_token
    )
    assert "unk_token" not in spec.special_tokens


def test_a_template_that_cannot_be_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointUnsupported,
        match=r"^model: the chat template cannot be parsed, line 1: .*'no_tag'.*change the",
    ):
        check_chat_template("model", files(tmp_path, "{% no_tag %}"))


@pytest.mark.parametrize(
    ("rendering", "words"),
    [
        ("other", r"a conversation of user in a bundle as \.\.\.'other', expected"),
        (None, "fails in a bundle for a conversation of user,"),
    ],
)
def test_another_rendering_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendering: str | None, words: str
) -> None:
    """A renderer that differs from transformers is made up here."""

    def render(*_: object, **options: object) -> str:
        if rendering is None:
            raise InvalidArgument("made up")
        return rendering

    monkeypatch.setattr(ChatTemplate, "render", render)
    with pytest.raises(CheckpointUnsupported, match=words):
        check_chat_template("model", files(tmp_path, JSON))


@pytest.mark.parametrize(
    ("template", "outcome"),
    [
        ("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}1{% endif %}", "without it"),
        ("\n{{ strftime_now('%d') }}", "it gets 26 July 2024"),
        (SMOLLM3, "it gets 26 July 2024"),
        (MISTRAL, "it gets 26 July 2024"),
        ("{{ strftime_now('%d') }}{% if strftime_now is defined %}D{% endif %}", "it gets 26 July 2024"),
        ("{{ strftime_now('%d') }}{{ raise_exception('no') }}", "refuse every chat"),
        ("  {% if strftime_now is defined %}D{% endif %}X {{ messages[0].content }}", "without it"),
        ("\r\n{% if strftime_now is defined %}D{% endif %}X {{ messages[0].content }}", "without it"),
        ("\n\n  {% if strftime_now is defined %}D{% endif %}X", "without it"),
    ],
)
def test_the_clock_is_left_out_and_the_build_says_so(tmp_path: Path, template: str, outcome: str) -> None:
    (note,) = check_chat_template("model", files(tmp_path, template))
    assert "today's date (strftime_now)" in note
    assert note.endswith(outcome)


def test_the_refusal_comes_before_the_weights(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the weights were read")

    files(tmp_path, "{% no_tag %}").rename(tmp_path / "model")
    LlamaConfig(vocab_size=272, hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path / "model")
    save_file({"x": torch.zeros(1)}, tmp_path / "model" / "model.safetensors")
    monkeypatch.setattr(checkpoint, "_read_weights", read)
    spec = Target.model_validate({"source": str(tmp_path / "model")})
    with pytest.raises(CheckpointUnsupported, match="cannot be parsed"):
        checkpoint.load_checkpoint(spec, "fp32")
