"""A directory's tokenizer.json is taken as it is; what its config adds is what transformers' fast tokenizers add."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.directory_tokenizer import write_directory_tokenizer
from specexport.tokenizer.probes import PROBE_TEXTS
from tests.specexport.tokenizer.gguf_vocabularies import TEXTS, byte_level_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def own_tokenizer(*, bos: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(byte_level_model())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def taken(directory: Path, tokenizer: Tokenizer, **config: Any) -> tuple[Tokenizer, tuple[str, ...]]:
    (directory / "from").mkdir()
    tokenizer.save(str(directory / "from" / "tokenizer.json"))
    (directory / "from" / "tokenizer_config.json").write_text(json.dumps(config))
    notes = write_directory_tokenizer("tiny", directory / "from", False, directory / "to")
    return Tokenizer.from_file(str(directory / "to" / "tokenizer.json")), notes


@pytest.mark.parametrize(
    "named", ["GPT2Tokenizer", "LlamaTokenizer", "Qwen2TokenizerFast", "T5Tokenizer", "Unheard"]
)
def test_the_class_of_the_config_does_not_change_how_text_is_split(tmp_path: Path, named: str) -> None:
    own = own_tokenizer()
    found, notes = taken(tmp_path, own, tokenizer_class=named, bos_token="<|im_start|>", legacy=False)
    assert notes == ()
    for text in (*TEXTS, *PROBE_TEXTS, "a<|im_end|> the\n12"):
        assert found.encode(text).ids == own.encode(text).ids, text


@pytest.mark.parametrize("dropout", [None, 0.0, 0.1])
def test_a_model_that_splits_at_random_is_refused(tmp_path: Path, dropout: float | None) -> None:
    own = own_tokenizer()
    document = json.loads(own.to_str())
    document["model"]["dropout"] = dropout
    changed = Tokenizer.from_str(json.dumps(document))
    if not dropout:
        found, _ = taken(tmp_path, changed)
        assert all(found.encode(text).ids == own.encode(text).ids for text in TEXTS)
        return
    splits = {tuple(changed.encode(TEXTS[0] * 20).ids) for _ in range(20)}
    assert len(splits) > 1  # what transformers' fast tokenizers would do
    with pytest.raises(
        CheckpointUnsupported, match=r"tiny: the model in its tokenizer\.json has dropout 0\.1"
    ):
        taken(tmp_path, changed)


@pytest.mark.parametrize(
    ("file_adds", "config", "said"),
    [
        (
            False,
            {"add_bos_token": True},
            "add_bos_token: true, but tokenizer.json does not add '<|im_start|>'",
        ),
        (True, {"add_bos_token": False}, "add_bos_token: false, but tokenizer.json adds '<|im_start|>'"),
        (True, {"add_eos_token": True}, "add_eos_token: true, but tokenizer.json does not add '<|im_end|>'"),
        (True, {"add_bos_token": True, "add_eos_token": False}, None),
        (True, {}, None),
    ],
)
def test_the_files_post_processor_holds_against_flags_as_in_transformers(
    tmp_path: Path, file_adds: bool, config: dict[str, bool], said: str | None
) -> None:
    own = own_tokenizer(bos=file_adds)
    found, notes = taken(tmp_path, own, bos_token=SPECIAL[1], eos_token=SPECIAL[2], **config)
    fast = PreTrainedTokenizerFast.from_pretrained(tmp_path / "from")
    for text in TEXTS:
        assert found.encode(text).ids == fast(text)["input_ids"] == own.encode(text).ids, text
    assert len(notes) == (said is not None)
    assert all(said is not None and said in note for note in notes)


LLAMA = {"tokenizer_class": "LlamaTokenizer"}
BOS, BOTH = {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}
# The ids around "x =  12", and the named bos, as LlamaTokenizer and PreTrainedTokenizerFast of transformers 5 give them
# with sentencepiece installed.
MODELS: list[tuple[dict[str, Any], dict[str, Any] | None, list[int], list[int], str | None]] = [
    ({**LLAMA, **BOS, "bos_token": "<s>", "eos_token": "</s>"}, None, [1], [], "<s>"),
    ({**LLAMA, "bos_token": "<s>", "eos_token": "</s>"}, None, [], [], "<s>"),
    ({**LLAMA, **BOS}, None, [1], [], "<s>"),
    ({**LLAMA, **BOS}, {"bos_token": "<s>"}, [1], [], "<s>"),
    ({**LLAMA, **BOTH}, None, [1], [2], "<s>"),
    (BOTH, None, [1], [2], "<s>"),
    ({**LLAMA, **BOTH, "bos_token": "</s>"}, {"bos_token": {"content": "<s>"}}, [1], [2], "<s>"),
    (
        {**LLAMA, **BOTH, "bos_token": "</s>", "added_tokens_decoder": {}},
        {"bos_token": "<s>"},
        [2],
        [2],
        "</s>",
    ),
    ({**LLAMA, "bos_token": None, "add_eos_token": True}, None, [], [2], None),
]


def pieces(directory: Path, config: dict[str, Any] | str, tokens_map: dict[str, Any] | None = None) -> Any:
    """A directory with tokenizer.model; returns what is known of it."""
    known = json.loads((Path(__file__).parent / "sentencepiece.json").read_text(encoding="utf-8"))["pairs"]
    (directory / "tokenizer.model").write_bytes(base64.b64decode(known["model"]))
    stated = config if isinstance(config, str) else json.dumps(config)
    (directory / "tokenizer_config.json").write_text(stated)
    if tokens_map is not None:
        (directory / "special_tokens_map.json").write_text(json.dumps(tokens_map))
    return known


@pytest.mark.parametrize(("config", "tokens_map", "before", "after", "bos"), MODELS)
def test_flags_hold_where_there_is_no_file(
    tmp_path: Path,
    config: dict[str, Any],
    tokens_map: dict[str, Any] | None,
    before: list[int],
    after: list[int],
    bos: str | None,
) -> None:
    known = pieces(tmp_path, config, tokens_map)
    assert write_directory_tokenizer("tiny", tmp_path, False, tmp_path / "to") == ()
    found = Tokenizer.from_file(str(tmp_path / "to" / "tokenizer.json"))
    text, ids = known["ids"][1]
    assert found.encode(text).ids == [*before, *map(int, ids.split()), *after]
    named = json.loads((tmp_path / "to" / "tokenizer_config.json").read_text())
    assert (named.get("bos_token"), named["eos_token"], named["unk_token"]) == (bos, "</s>", "<unk>")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"tokenizer cannot be loaded: tokenizer_config\.json: Expecting property name"),
        ("[]", r"tokenizer_config\.json holds a list, expected an object"),
        (
            {"bos_token": {"lstrip": True}},
            r"tokenizer_config\.json: bos_token is \{'lstrip': True\}, expected the",
        ),
        (
            {"bos_token": None, "add_bos_token": True},
            r"says add_bos_token: true, but neither it nor .* names a bos_",
        ),
        ({"add_eos_token": "yes"}, r"add_eos_token is 'yes', expected true or false"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused_where_there_is_no_file(
    tmp_path: Path, config: dict[str, Any] | str, message: str
) -> None:
    pieces(tmp_path, config)
    with pytest.raises(CheckpointUnsupported, match=message):
        write_directory_tokenizer("tiny", tmp_path, False, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_token_that_only_the_config_adds_is_found_in_text_and_said(tmp_path: Path) -> None:
    added = {"content": "<think>", "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    own = own_tokenizer()
    index = own.get_vocab_size()
    decoder = {str(index): {**added, "single_word": False}}
    found, notes = taken(tmp_path, own, added_tokens_decoder=decoder)
    assert found.encode("a<think> 12").ids == [*own.encode("a").ids, index, *own.encode(" 12").ids]
    assert notes == ("tokenizer_config.json adds '<think>' to the tokens of tokenizer.json",)


def test_truncation_and_padding_of_a_file_do_not_reach_the_bundle(tmp_path: Path) -> None:
    own = own_tokenizer()
    expected = own.encode(TEXTS[2]).ids
    own.enable_truncation(4)
    own.enable_padding(length=64)
    found, _ = taken(tmp_path, own)
    assert found.encode(TEXTS[2]).ids == expected
    assert found.encode("a").ids == [own.token_to_id("a")]


def test_special_tokens_that_must_not_be_found_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match="sets split_special_tokens"):
        taken(tmp_path, own_tokenizer(), split_special_tokens=True)


def test_a_tokenizer_that_parts_from_its_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain_gpt2(*args: Any, **options: Any) -> PreTrainedTokenizerFast:
        other = own_tokenizer()
        other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return PreTrainedTokenizerFast(tokenizer_object=other)

    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", plain_gpt2)
    with pytest.raises(
        CheckpointUnsupported, match=r"differs from its tokenizer\.json: 'x =  12' becomes \["
    ):
        taken(tmp_path, own_tokenizer())


def test_a_vocabulary_without_a_class_that_splits_is_refused(tmp_path: Path) -> None:
    model = json.loads(own_tokenizer().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointUnsupported, match="its tokenizer cannot be loaded"):
        write_directory_tokenizer("tiny", tmp_path, False, tmp_path / "to")


def test_a_vocabulary_with_merges_is_split_as_the_class_of_its_config_says(tmp_path: Path) -> None:
    model = json.loads(own_tokenizer().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    write_directory_tokenizer("tiny", tmp_path, False, tmp_path / "to")
    found = Tokenizer.from_file(str(tmp_path / "to" / "tokenizer.json"))
    gpt2 = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]]))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in TEXTS:
        assert found.encode(text).ids == gpt2.encode(text).ids, text


def test_a_model_file_that_is_not_sentencepiece_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("YQ== 0\nYg== 1\n")
    with pytest.raises(CheckpointUnsupported, match=r"tokenizer\.model is not a SentencePiece model"):
        write_directory_tokenizer("tiny", tmp_path, False, tmp_path / "to")
