"""The bench of the workers' tests serves here, too."""

from tests.worker.conftest import bench

__all__ = ["bench"]
