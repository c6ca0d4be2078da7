"""The Triton repository: read by Triton's own schema; its model answers as the library, over a stand-in backend."""

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import text_format

from specexport.cli import main
from specruntime import SamplingParams, complete, open_bundle
from specruntime.serving import Event, Work
from tests.specexport.deploy import triton_stand_in
from tests.specexport.deploy.served import alone, launches_of, load
from tests.specexport.deploy.triton_stand_in import Request


def deploy(bundle: Path, place: Path) -> Path:
    done = CliRunner().invoke(
        main, ["deploy", "triton", str(bundle), "-o", str(place), "--slots", "2", "--prefix-caching", "off"]
    )
    assert done.exit_code == 0, done.output
    return place


@pytest.fixture(scope="module")
def repository(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(tiny_bundle, tmp_path_factory.mktemp("triton") / "repository")


@pytest.fixture(scope="module")
def config(repository: Path) -> Any:
    return parsed(repository)


def parsed(repository: Path) -> Any:
    """config.pbtxt as Triton's own message; the client's package carries it, its gRPC parts are left alone."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None and package.submodule_search_locations
    schema = load(
        "model_config_pb2", Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    )
    return text_format.Parse((repository / "tiny-random" / "config.pbtxt").read_text(), schema.ModelConfig())


def test_the_configuration_is_one_of_tritons(config: Any) -> None:
    assert config.name == "tiny-random" and config.backend == "python"
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    assert {entry.name for entry in config.output} == {"text", "token_ids", "finish_reason", "seed"}
    assert all(entry.optional for entry in config.input)
    assert config.parameters["slots"].string_value == "2"
    assert config.parameters["prefix_caching"].string_value == "off"


@pytest.fixture(scope="module")
def model(repository: Path, config: Any) -> Iterator[Any]:
    with served(repository, config) as model:
        yield model


@contextmanager
def served(repository: Path, config: Any) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_stand_in)
        yield from _initialized(repository, config)


def _initialized(repository: Path, config: Any) -> Iterator[Any]:
    place = repository / "tiny-random"
    made = load("triton_model_of_the_test", place / "1" / "model.py").TritonPythonModel()
    parameters = {key: {"string_value": entry.string_value} for key, entry in config.parameters.items()}
    made.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_repository": str(place),
            "model_version": "1",
        }
    )
    yield made
    made.finalize()


def ask(model: Any, config: Any, **values: Any) -> Request:
    from google.protobuf.descriptor import EnumDescriptor

    kinds: EnumDescriptor = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type
    names = {number.number: number.name for number in kinds.values}
    inputs = {entry.name: names[entry.data_type] for entry in config.input}
    outputs = {entry.name: names[entry.data_type] for entry in config.output}
    request = Request(inputs, outputs, **values)
    model.execute([request])
    return request


def collected(request: Request) -> tuple[str, list[int], str]:
    assert request.sender.final.wait(120)
    text, ids, reason = "", [], ""
    for response in request.sender.responses:
        assert response.error is None, response.error
        named = {tensor.tensor_name: tensor.array for tensor in response.output_tensors}
        text += named["text"][0].decode()
        ids += named["token_ids"].tolist()
        reason = named["finish_reason"][0].decode()
    return text, ids, reason


def test_answers_are_those_of_the_library(model: Any, config: Any, tiny_bundle: Path) -> None:
    asked = {"max_tokens": 20, "temperature": 0.5, "seed": 3, "ignore_eos": True}
    requests = [
        ask(model, config, prompt=b"abcabc", **asked),
        ask(model, config, prompt=b"abcabc", stream=False, **asked),
        ask(model, config, prompt_ids=[97, 98, 99, 97, 98, 99], stop=[b"\n\n\n"], **asked),
    ]
    with open_bundle(tiny_bundle, verify=False) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        params = SamplingParams(max_tokens=20, temperature=0.5, seed=3, ignore_eos=True)
        expected = complete(bundle.new_session(), codec.encode("abcabc"), params, codec)
    for request in requests:
        assert collected(request) == (expected.text, list(expected.token_ids), "length")
    assert len(requests[0].sender.responses) > 1 == len(requests[1].sender.responses)


def test_a_bundle_with_batch_widths_is_served_in_batches(
    batched_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = deploy(batched_bundle, tmp_path / "repository")
    config = parsed(repository)
    prompts = ([97, 98, 99, 97, 98, 99], [100, 101, 100, 101])
    with served(repository, config) as model:
        launches = launches_of(model._scheduler)
        stepper, both = model._scheduler._stepper, threading.Event()
        step = stepper.step

        def step_with_both() -> Any:
            assert both.wait(120)
            return step()

        monkeypatch.setattr(stepper, "step", step_with_both)
        asked = [ask(model, config, prompt_ids=ids, max_tokens=60, ignore_eos=True) for ids in prompts]
        both.set()
        answers = [collected(request)[1] for request in asked]
        together = launches_of(model._scheduler) - launches
    single = [alone(batched_bundle, ids, 60) for ids in prompts]
    assert answers == [tokens for tokens, _ in single]
    assert together < 0.8 * sum(calls for _, calls in single), "launches are shared"


def test_what_cannot_be_answered_is_an_error_of_its_request(model: Any, config: Any) -> None:
    cases: list[dict[str, Any]] = [
        {"prompt": b""}, {"prompt_ids": [9999]}, {"prompt": b"a", "temperature": -1.0}, {"max_tokens": 3},
        {"prompt": b"a", "prompt_ids": [97]},
    ]  # fmt: skip
    for values in cases:
        request = ask(model, config, **values)
        assert request.sender.final.wait(120)
        (response,) = request.sender.responses
        assert response.error is not None and response.error.text
    assert collected(ask(model, config, prompt=b"abc", max_tokens=2))[1]


@pytest.mark.parametrize(("limit", "cancelled"), [(1, False), (60, True)])
def test_a_request_that_is_cancelled_at_once_gets_its_last_response(
    model: Any, config: Any, monkeypatch: pytest.MonkeyPatch, limit: int, cancelled: bool
) -> None:
    """Also where the scheduler is through with it before the model learns that it was submitted."""
    submit = model._scheduler.submit

    def slow(work: Work, deliver: Callable[[Event], None]) -> object:
        ended = threading.Event()

        def heard(event: Event) -> None:
            try:
                deliver(event)
            finally:
                if event.last:
                    ended.set()

        ticket = submit(work, heard)
        assert ended.wait(120)
        return ticket

    monkeypatch.setattr(model._scheduler, "submit", slow)
    monkeypatch.setattr(Request, "is_cancelled", lambda request: True)
    request = ask(model, config, prompt=b"abcabc", max_tokens=limit, ignore_eos=True)
    assert request.sender.final.is_set()
    last = request.sender.responses[-1]
    assert (last.error is not None and "cancelled" in last.error.text) is cancelled


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_is_cancelled_before_it_delivers_ends_at_once(
    model: Any, config: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """In the queue, while both slots answer, and in its prompt: neither delivers anything."""
    stepper, go_on, held = model._scheduler._stepper, threading.Event(), threading.Event()
    step = stepper.step

    def slow() -> Any:
        held.set()
        assert go_on.wait(120)
        return [] if fed else step()  # a prompt that takes for ever

    fed: list[bool] = []
    monkeypatch.setattr(stepper, "step", slow)
    asked = {"prompt": b"abcabc", "max_tokens": 40, "ignore_eos": True, "stream": stream}
    before = [ask(model, config, **asked) for _ in range(2)]
    assert held.wait(120)
    queued = ask(model, config, **asked)
    fed.append(True)
    go_on.set()
    for request in (queued, before[1]):
        request.cancelled = True
        assert request.sender.final.wait(120), "Triton was not asked whether it was cancelled"
        (last,) = request.sender.responses
        assert last.error is not None and "cancelled" in last.error.text
    fed.clear()
    assert len(collected(before[0])[1]) == 40
    assert collected(ask(model, config, prompt=b"abc", max_tokens=2))[1]
    assert wait_for_none(model._open), "requests that have ended are not watched any more"


def wait_for_none(watched: list[object]) -> bool:
    end = time.monotonic() + 120
    while watched and time.monotonic() < end:
        time.sleep(0.01)
    return not watched


def test_a_directory_that_is_there_is_left_alone(repository: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in repository.rglob("*"))
    done = CliRunner().invoke(main, ["deploy", "triton", str(tiny_bundle), "-o", str(repository)])
    assert done.exit_code == 1 and "is there already" in done.stderr
    assert sorted(path.name for path in repository.rglob("*")) == before
    done = CliRunner().invoke(main, ["deploy", "triton", str(tmp_path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1 and not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specexport.deploy.triton.copyfile", full)
    done = CliRunner().invoke(main, ["deploy", "triton", str(tiny_bundle), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1 and "No space left on device; free space" in done.stderr
    assert list(tmp_path.iterdir()) == []
