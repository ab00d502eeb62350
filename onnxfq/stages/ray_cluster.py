"""A connection to a Ray cluster. The only importer of ray (extra `ray`)."""

from __future__ import annotations

import tempfile
from typing import Any

from onnxfq.errors import RuntimeLibraryError
from onnxfq.support.records import join_lines

LOCAL = "local"
_STORE_BYTES = 256 << 20


def fetch_result(ray: Any, reference: Any) -> Any:
    """Return what a task returned; raise what it raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise RuntimeLibraryError(
            "a cluster needs ray: pip install 'onnxfq[ray]', or leave --ray out"
        ) from None
    return ray


class Cluster:
    """A connection to a cluster, closed at the end; a connection that is open already is used and kept."""

    def __init__(self, address: str, cores: int) -> None:
        """Prepare the connection.

        Args:
            address: of the cluster, or "local" for this machine.
            cores: of this machine, 0 for all.

        Raises RuntimeLibraryError if ray is missing.
        """
        self._ray, self._address, self._cores = _import_ray(), address, cores
        self._mine = False

    def __enter__(self) -> Any:
        """Connect and return the module ray. Raises RuntimeLibraryError if the cluster does not answer."""
        if self._ray.is_initialized():
            return self._ray
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address == LOCAL:
                self._ray.init(
                    num_cpus=self._cores or None,
                    object_store_memory=_STORE_BYTES,
                    include_dashboard=False,
                    _temp_dir=tempfile.gettempdir(),
                    **quiet,
                )
            else:
                self._ray.init(address=self._address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RuntimeLibraryError(
                f"no Ray cluster at {self._address!r}: {join_lines(error)[:200]}; start one, or use local"
            ) from None
        self._mine = True
        return self._ray

    def __exit__(self, *exception: object) -> None:
        if self._mine:
            self._ray.shutdown()
