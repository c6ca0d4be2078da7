"""In how many source files of both packages each draft kind and each backend is named: the bounds may only fall."""

import re

import pytest

from tests.conftest import REPOSITORY

# Words that a file which knows the kind cannot do without. Of `none` and `model`, which are English too, the classes.
KINDS = {
    "none": (r"NoneDraft|NoProposer", 6),
    "ngram": (r"(?<!jso)n_?gram", 8),
    "model": (r"ModelDraft|ModelProposer|FusedProposer", 5),
    "layer_skip": (r"layer_?skip", 7),
    "medusa": (r"medusa", 23),
    "eagle": (r"eagle", 28),
}


def files_that_name(pattern: str) -> list[str]:
    wanted = re.compile(pattern, re.IGNORECASE)
    roots = (REPOSITORY / "specexport", REPOSITORY / "runtime" / "specruntime")
    return sorted(
        str(path.relative_to(REPOSITORY))
        for root in roots
        for path in root.rglob("*.py")
        if wanted.search(path.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_named_in_few_files(kind: str) -> None:
    pattern, most = KINDS[kind]
    found = files_that_name(pattern)
    assert len(found) <= most, f"{kind} is named in {len(found)} files: {', '.join(found)}"


# The classes of a backend: sections of manifest and recipe, engine, build side.
BACKENDS = {
    "onnxruntime": (r"OnnxRuntimeEngine|OrtEngine|OnnxRuntimeBackend|OnnxRuntimeBuild", 13),
    "tensorrt": (r"TensorRTEngine|TrtEngine|TensorRTBackend|TensorRTBuild", 10),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_is_named_in_few_files(backend: str) -> None:
    pattern, most = BACKENDS[backend]
    found = files_that_name(pattern)
    assert len(found) <= most, f"{backend} is named in {len(found)} files: {', '.join(found)}"
