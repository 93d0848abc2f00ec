#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""In the guest, as root: try to change what the host shares read-only.

    write-attempts.py DIRECTORY

DIRECTORY has a file "file" and a directory "directory". Each way is tried as the guest sees the host's files anyway,
again after a remount, and through a second mount, which also shows what the guest's own /proc and /dev lie on. Prints a
line for each that was not refused, and at last how many were tried.
"""
import ctypes
import errno
import os
import subprocess
import sys

REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL)


def append(path):
    with open(path, "ab", buffering=0) as file:
        file.write(b"x")


def truncate_open_file(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def allocate(path):
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, 1 << 16)
    finally:
        os.close(descriptor)


def exchange(one, other):
    """Python has no name for renameat2(AT_FDCWD, ..., RENAME_EXCHANGE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ways(directory):
    file, inner = f"{directory}/file", f"{directory}/directory"
    return {
        "append": lambda: append(file),
        "overwrite": lambda: os.close(os.open(file, os.O_WRONLY)),
        "truncate": lambda: os.truncate(file, 0),
        "truncate at open": lambda: os.close(os.open(file, os.O_RDONLY | os.O_TRUNC)),
        "truncate what is open": lambda: truncate_open_file(file),
        "allocate": lambda: allocate(file),
        "create": lambda: os.close(os.open(f"{directory}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
        "temporary file": lambda: os.close(os.open(directory, os.O_RDWR | os.O_TMPFILE)),
        "make a directory": lambda: os.mkdir(f"{directory}/new"),
        "make a FIFO": lambda: os.mkfifo(f"{directory}/new"),
        "make a device": lambda: os.mknod(f"{directory}/new", 0o20600, os.makedev(1, 3)),
        "symbolic link": lambda: os.symlink("file", f"{directory}/new"),
        "hard link": lambda: os.link(file, f"{directory}/new"),
        "rename": lambda: os.rename(file, f"{directory}/new"),
        "rename a directory": lambda: os.rename(inner, f"{directory}/new"),
        "exchange": lambda: exchange(file, inner),
        "unlink": lambda: os.unlink(file),
        "remove a directory": lambda: os.rmdir(inner),
        "change the mode": lambda: os.chmod(file, 0o777),
        "change the owner": lambda: os.chown(file, 1, 1),
        "change the times": lambda: os.utime(file, (1, 1)),
        "set an attribute": lambda: os.setxattr(file, "user.x", b"x"),
    }


def attempt(where, tried):
    for name, way in tried.items():
        try:
            way()
        except OSError as error:
            if error.errno not in REFUSED:
                print(f"{where}: {name}: refused in an odd way: {error}")
        else:
            print(f"{where}: {name}: done")
    return len(tried)


def main():
    directory = sys.argv[1]
    count = attempt("as it is", ways(directory))
    subprocess.run(["mount", "-o", "remount,rw", "/"], check=False, stderr=subprocess.DEVNULL)
    count += attempt("remounted", ways(directory))
    second = "/run/second"
    os.mkdir(second)
    subprocess.run(["mount", "--bind", "/", second], check=True)
    subprocess.run(["mount", "-o", "remount,rw,bind", second], check=False, stderr=subprocess.DEVNULL)
    count += attempt("second mount", ways(second + directory))
    count += attempt("second mount", {f"write to {path}": lambda path=path: append(second + path)
                                      for path in ("/proc/self/comm", "/proc/sys/vm/drop_caches", "/dev/shm/x")})
    print(f"{count} attempts")


main()
