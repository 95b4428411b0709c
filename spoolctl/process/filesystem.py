"""What kind of file system holds a path: can another kernel see the same files?"""

from __future__ import annotations

import os
import sys

KINDS = {
    "local": "apfs aufs bcachefs btrfs devtmpfs erofs exfat ext2 ext3 ext4 f2fs fuseblk hfs"
    " hfsplus iso9660 jfs msdos nilfs2 ntfs ntfs3 overlay ramfs reiserfs rootfs squashfs tmpfs"
    " udf ufs vfat xfs zfs",
    # These do not keep SQLite's promises between processes.
    "network": "afpfs afs cifs fuse.sshfs ncpfs nfs nfs4 smb2 smb3 smbfs webdav",
    # Another kernel (a virtual machine's host, a container's) may see the same files.
    "shared": "9p applevirtiofs beegfs ceph drvfs fakeowner fuse gfs2 glusterfs gpfs grpcfuse"
    " lustre macfuse ocfs2 orangefs osxfs osxfuse prl_fs vboxsf virtiofs vmhgfs",
}
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def file_system(path: str) -> str:
    """`local`, `shared` (two kernels may see it), `network` or `unknown`.

    Asks about the folder of `path` (or `path`, if it is a folder) as it is mounted here.
    Opens no file beside that folder.
    """
    kind = file_system_type(path)
    return _KIND_OF.get(kind) or ("shared" if kind.startswith("fuse.") else "unknown")


def file_system_type(path: str) -> str:
    """The name by which the kernel knows the file system, lower case; empty if unknown."""
    folder = path
    while not os.path.isdir(folder):
        above = os.path.dirname(os.path.abspath(folder))
        if above == folder:
            return ""
        folder = above
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return darwin.file_system_type(folder).lower()
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            mounts = [_parse(line) for line in file]
    except OSError:
        return ""
    number = _mount_number(folder)
    for mount_number, _, kind in mounts:
        if mount_number == number:
            return kind
    return _by_name(os.path.realpath(folder), mounts) if number is None else ""


def _mount_number(folder: str) -> bytes | None:
    """The id of the mount that holds `folder` (proc(5), fdinfo), exact also on btrfs."""
    try:
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
                for line in file:
                    if line.startswith(b"mnt_id:"):
                        return line.split()[1]
        finally:
            os.close(fd)
    except OSError:
        pass
    return None


def _parse(line: bytes) -> tuple[bytes, str, str]:
    before, _, after = line.partition(b" - ")
    words = before.split(b" ")
    # Blanks and backslashes in a mount point are written as \040 and so on.
    where = words[4].decode("unicode_escape").encode("latin-1")
    return words[0], os.fsdecode(where), after.split(b" ", 1)[0].decode().lower()


def _by_name(folder: str, mounts: list[tuple[bytes, str, str]]) -> str:
    best, kind = -1, ""
    for _, where, name in mounts:
        inside = folder == where or folder.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= best:  # of two at one place the later one is on top
            best, kind = len(where), name
    return kind
