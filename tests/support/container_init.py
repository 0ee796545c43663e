"""Runs as root inside the namespaces that tests/support/container.py creates.

Mounts an overlay of this machine's file system, then builds the stages of an image or becomes the program of a
container. Changes nothing outside: mounts are private, writes go to a tmpfs. Must use the standard library only.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source, target, *, read_only=False):
    make_mount_point(source, target)
    mount("--rbind", source, target)
    if read_only:
        mount("-o", "remount,bind,ro", target)


def make_mount_point(source, target):
    """Creates the mount point if the image does not have it, as an engine does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()


def copy_layer(source, target):
    """Copies everything except overlayfs's own attributes, which have no meaning in another overlay."""
    subprocess.run(["cp", "-dR", "--preserve=mode,ownership,timestamps", f"{source}/.", target], check=True)


class Tree:
    """A file system whose lowest layer is that of this machine; `layer` holds the differences."""

    def __init__(self, scratch, name, spec, image=""):
        self.layer, work, self.root = (scratch / f"{name}-{part}" for part in ("layer", "work", "root"))
        for directory in (self.layer, work, self.root):
            directory.mkdir()
        if image:
            copy_layer(image, self.layer)
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={self.layer},workdir={work}", self.root)
        mount("-t", "proc", "proc", self.root / "proc")
        mount("--rbind", "/dev", self.root / "dev")
        for path in spec["visible"]:
            # Readable for users without access to /root, and where another mount covers /tmp.
            for parent in reversed(Path(path).parents):
                inside = self.at(parent)
                inside.chmod(inside.stat().st_mode | 0o011)
            # A lower layer contains only files of the same file system.
            if os.stat(path).st_dev != os.stat("/").st_dev or Path("/tmp") in Path(path).parents:
                bind(Path(path), self.at(path), read_only=True)
        for target, source in spec["given"].items():
            bind(Path(source), self.at(target), read_only=True)

    def at(self, path):
        return self.root / str(path).lstrip("/")

    def run(self, command, cwd, env, user):
        self.at(cwd).mkdir(parents=True, exist_ok=True)
        line = ["chroot", f"--userspec={user}:{user}", self.root, "/bin/sh", "-c", f"cd {cwd} && {command}"]
        subprocess.run(line, env=env, check=True, stdin=subprocess.DEVNULL)

    def copy(self, source, target, mode):
        """Copies as COPY does: the content of a directory, or a file under its name, with the mode if given."""
        into = self.at(target)
        if source.is_dir():
            shutil.copytree(source, into, dirs_exist_ok=True, symlinks=True)
        else:
            into = into / source.name if str(target).endswith("/") else into
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into)
            if mode:
                into.chmod(mode)


def build(spec, scratch):
    """Builds every stage in its own tree; keeps the differences of the last one."""
    trees = {}
    for number, stage in enumerate(spec["stages"]):
        image = spec["base"] if stage["is_on_ours"] else ""
        tree = trees[stage["name"] or number] = Tree(scratch, f"stage{number}", spec, image)
        for kind, arguments in stage["steps"]:
            if kind == "run":
                tree.run(*arguments)
            else:
                origin, sources, target, mode = arguments
                for source in sources:
                    tree.copy(trees[origin].at(source) if origin else Path(spec["context"]) / source, target, mode)
    copy_layer(tree.layer, spec["save"])


def run(spec, scratch):
    tree = Tree(scratch, "container", spec, spec["image"])
    with tree.at("/etc/hosts").open("a") as hosts:
        hosts.writelines(f"127.0.0.1 {name}\n" for name in spec["hosts"])
    for target, source, read_only in spec["volumes"]:
        bind(Path(source), tree.at(target), read_only=read_only)
    for target in spec["tmpfs"]:
        tree.at(target).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", tree.at(target))
    mount("-o", "remount,ro", tree.root)
    raise_loopback()
    os.chroot(tree.root)
    os.chdir(spec["cwd"])
    become(spec["user"])
    os.environ.clear()
    os.environ.update(spec["env"])
    os.execvp(spec["argv"][0], spec["argv"])


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def become(user):
    """Becomes that user, without other groups and capabilities, and unable to regain them."""
    libc = ctypes.CDLL(None, use_errno=True)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"capability {capability} can't be dropped")
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs can't be set")
    os.setgroups([user])  # the fsGroup of our pods
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    scratch = Path(spec["scratch"])
    mount("-t", "tmpfs", "tmpfs", scratch)
    with contextlib.chdir(scratch):
        build(spec, scratch) if spec["is_build"] else run(spec, scratch)


if __name__ == "__main__":
    main()
