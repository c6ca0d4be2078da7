"""What a second thread does while files are hashed and engines load: imports, the tokenizer, the ends of files.

Hashing and an engine's loading leave the interpreter free. Nothing is parsed before its hash was checked.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from specruntime.manifest import Manifest, OnnxRuntimeEngine
from specruntime.text import TextCodec

T = TypeVar("T")


class Preload:
    """One thread beside the one that opens a bundle. What fails in it is told to whoever needs it."""

    def __init__(self, manifest: Manifest, text: bool) -> None:
        """Begins with imports: of the target's library, and with `text` of the tokenizer's."""
        self._thread = ThreadPoolExecutor(1, "specruntime-preload")
        self._spec = manifest.tokenizer if text else None
        if isinstance(manifest.target.engine, OnnxRuntimeEngine):
            self._begin(_import_onnxruntime)
        for name in () if self._spec is None else ("tokenizers", "jinja2.sandbox"):
            self._begin(import_module, name)

    def tokenizer(self, root: Path) -> Future[TextCodec] | None:
        """Begins to read the tokenizer, whose files were checked. None where nobody asked for it or there is none."""
        return None if self._spec is None else self._begin(TextCodec.open, root, self._spec)

    def check(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begins a check; what is returned waits for it and raises what it found."""
        begun = self._begin(work)
        return work if begun is None else begun.result

    def _begin(self, work: Callable[..., T], *arguments: object) -> Future[T] | None:
        """None where the process may have no further thread: then it is done when it is needed."""
        try:
            return self._thread.submit(work, *arguments)
        except RuntimeError:
            return None

    def __enter__(self) -> "Preload":
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=error[0] is not None)


def _import_onnxruntime() -> None:
    from specruntime.engines.onnx_runtime import import_onnxruntime

    import_onnxruntime()
