"""All that the calls of a `Queue` import: for those who live long, before the file is opened.

Later there may be no descriptor left for it, or another version of it on the disk. (`work` is
not among them: whoever calls it begins something new.)
"""

from __future__ import annotations

from spoolctl import asked as asked
from spoolctl import waiting as waiting
from spoolctl.engine import output as output
from spoolctl.engine import pruning as pruning
from spoolctl.engine import serving as serving
from spoolctl.engine import stream_files as stream_files
from spoolctl.process import bell as bell
from spoolctl.process import identity as identity
from spoolctl.store import open_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store


def open_for_long(path: str, *, create: bool, wait_s: float) -> Store:
    """Like `open_store`, and the store is ready for a long life."""
    store = open_store(path, create=create, wait_s=wait_s)
    try:
        store.prepare()
    except BaseException:
        store.close()
        raise
    return store
