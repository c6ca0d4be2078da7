"""Directories that other serving systems run: a Ray Serve application, a Triton model repository.

Each holds the bundle, one Python file over specruntime, and that system's configuration. Nothing of this package is
needed where they run; the files that are copied there (`ray_application`, `triton_model`) import nothing of it.
"""

from specexport.deploy.place import InstanceOptions, place_deployment
from specexport.deploy.ray import RayOptions, write_ray
from specexport.deploy.triton import write_triton

__all__ = ["InstanceOptions", "RayOptions", "place_deployment", "write_ray", "write_triton"]
