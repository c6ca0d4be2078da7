"""A Triton model repository: the bundle behind Triton's Python backend, streaming by decoupled responses."""

from pathlib import Path
from shutil import copyfile

from specexport.deploy.place import InstanceOptions, copy_bundle, place_deployment
from specruntime.manifest.schema import Manifest

# name, Triton's type, dims, optional
INPUTS = (
    ("prompt", "TYPE_STRING", 1, True),
    ("prompt_ids", "TYPE_INT64", -1, True),
    ("max_tokens", "TYPE_INT64", 1, True),
    ("temperature", "TYPE_FP32", 1, True),
    ("top_p", "TYPE_FP32", 1, True),
    ("top_k", "TYPE_INT64", 1, True),
    ("seed", "TYPE_INT64", 1, True),
    ("ignore_eos", "TYPE_BOOL", 1, True),
    ("stop", "TYPE_STRING", -1, True),
    ("stream", "TYPE_BOOL", 1, True),
)
OUTPUTS = (
    ("text", "TYPE_STRING", 1),
    ("token_ids", "TYPE_INT64", -1),
    ("finish_reason", "TYPE_STRING", 1),
    ("seed", "TYPE_INT64", 1),
)
_README = """# {name} for Triton

    pip install 'CLONE/runtime[ort,text]'    # specruntime, from a clone, into the Python that Triton's backend runs
    pip install CLONE/runtime/kernels        # optional: its operators for CPUs; needs a C++ compiler
    tritonserver --model-repository=.

`{name}/config.pbtxt` names the inputs (a `prompt` or `prompt_ids`, and sampling options) and the outputs (`text`,
`token_ids`, `finish_reason`, `seed`). The model is decoupled: use the gRPC stream of a client, one response comes a
round; with `stream` false there is one. This repository was written and checked by its schema; it was not run in a
Triton server.
"""


def write_triton(bundle: Path, output: Path, options: InstanceOptions) -> Path:
    """Write the repository to the new directory `output`; raises as `place_deployment`."""

    def fill(root: Path, manifest: Manifest) -> None:
        version = root / manifest.name / "1"
        version.mkdir(parents=True)
        copy_bundle(bundle, version / "bundle")
        copyfile(Path(__file__).with_name("triton_model.py"), version / "model.py")
        (root / manifest.name / "config.pbtxt").write_text(_config(manifest.name, options))
        (root / "README.md").write_text(_README.format(name=manifest.name))

    return place_deployment(bundle, output, fill)


def _config(name: str, options: InstanceOptions) -> str:
    inputs = ",\n".join(
        f'  {{ name: "{tensor}" data_type: {kind} dims: [ {dims} ] optional: {str(optional).lower()} }}'
        for tensor, kind, dims, optional in INPUTS
    )
    outputs = ",\n".join(
        f'  {{ name: "{tensor}" data_type: {kind} dims: [ {dims} ] }}' for tensor, kind, dims in OUTPUTS
    )
    values = {
        "slots": options.slots,
        "queue": options.queue,
        "threads": options.threads or 0,
        "prefix_caching": options.prefix_caching,
    }
    parameters = "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )
    return f"""name: "{name}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [
{inputs}
]
output [
{outputs}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{parameters}
"""
