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
        folder, below = os.path.dirname(folder) or ".", folder
        if folder == below:
            return ""
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return darwin.file_system_type(folder).lower()
    # By the number of its mount (proc(5), fdinfo): a comparison of names would be misled by
    # mounts on top of others, one of devices by file systems that have several.
    number = _mount_number(folder)
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                if line.startswith(number + b" "):
                    return line.partition(b" - ")[2].split(b" ", 1)[0].decode().lower()
    except OSError:
        pass
    return ""


def _mount_number(folder: str) -> bytes:
    try:
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
                return file.read().partition(b"mnt_id:")[2].split()[0]
        finally:
            os.close(fd)
    except (OSError, IndexError):
        return b"?"
