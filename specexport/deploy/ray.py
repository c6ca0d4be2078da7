"""A Ray Serve application: the server of specruntime in as many replicas as the load needs."""

from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

import yaml

from specexport.deploy.place import InstanceOptions, copy_bundle, place_deployment
from specruntime.manifest.schema import Manifest

APPLICATION = "specruntime_app"
_README = """# {name} on Ray Serve

    pip install 'CLONE/runtime[ort,server]'    # specruntime, from a clone of its repository
    pip install CLONE/runtime/kernels          # optional: its operators for CPUs; needs a C++ compiler
    pip install -r requirements.txt
    serve run serve.yaml                       # here, with this directory as the working directory
    curl localhost:8000/v1/models

Each replica opens `bundle/` and is the OpenAI-compatible server of specruntime: /v1, /health, /ready, /metrics, a page
at /. `serve.yaml` sets replicas, autoscaling and each replica's slots, queue, threads and prefix caching. On several
machines put this directory where all of them see it and set SPECRUNTIME_BUNDLE to that place. Metrics are of the
replica that answers.
"""


@dataclass(frozen=True, kw_only=True)
class RayOptions(InstanceOptions):
    """How many replicas, and what each of them takes; `cpus` are reserved for it."""

    min_replicas: int = 1
    max_replicas: int = 4
    cpus: float = 1.0


def write_ray(bundle: Path, output: Path, options: RayOptions) -> Path:
    """Write the application to the new directory `output`; raises as `place_deployment`."""

    def fill(root: Path, manifest: Manifest) -> None:
        copy_bundle(bundle, root / "bundle")
        copyfile(Path(__file__).with_name("ray_application.py"), root / f"{APPLICATION}.py")
        text = yaml.safe_dump(_config(manifest, output.absolute() / "bundle", options), sort_keys=False)
        (root / "serve.yaml").write_text(text)
        (root / "requirements.txt").write_text("ray[serve]>=2.50\nspecruntime[ort,server]\n")
        (root / "README.md").write_text(_README.format(name=manifest.name))

    return place_deployment(bundle, output, fill)


def _config(manifest: Manifest, bundle: Path, options: RayOptions) -> dict[str, object]:
    environment = {
        "SPECRUNTIME_BUNDLE": str(bundle),
        "SPECRUNTIME_SLOTS": str(options.slots),
        "SPECRUNTIME_QUEUE": str(options.queue),
        "SPECRUNTIME_THREADS": str(options.threads or 0),
        "SPECRUNTIME_PREFIX_CACHING": options.prefix_caching,
    }
    ongoing = options.slots + options.queue
    deployment = {
        "name": "Server",
        "max_ongoing_requests": ongoing,
        "autoscaling_config": {
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.slots,
        },
        "ray_actor_options": {"num_cpus": options.cpus, "runtime_env": {"env_vars": environment}},
        "graceful_shutdown_timeout_s": 60,
        "health_check_period_s": 5,
    }
    return {
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": manifest.name,
                "route_prefix": "/",
                "import_path": f"{APPLICATION}:application",
                "deployments": [deployment],
            }
        ],
    }
