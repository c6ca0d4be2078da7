"""What can go wrong between an ONNX file and an engine file.

    BuildError (specexport.errors)
    └── CompileFailed              the library gave no engine
        ├── OperatorUnsupported    the parser has no translation for a node of the graph
        └── WorkspaceTooSmall      no kernel fits into `backend.workspace_mib`

A missing library or device is `BackendMissing` or `BackendIncompatible` (specruntime.errors).
"""

from specexport.errors import BuildError
from specruntime.errors import Status


class CompileFailed(BuildError):
    status = Status.ENGINE_FAILED


class OperatorUnsupported(CompileFailed):
    status = Status.BACKEND_INCOMPATIBLE


class WorkspaceTooSmall(CompileFailed):
    status = Status.OUT_OF_MEMORY
