"""Build the container image, and run doctor and the demo in it.

python scripts/container.py                    with buildah, on a Debian that debootstrap makes
python scripts/container.py --base IMAGE       ... on this image
python scripts/container.py --tool docker      with Docker, or podman, on the image that the Dockerfile names
python scripts/container.py --keep mmfw        the image stays, and has this name

Other arguments are handed to `build`, such as another index of PyTorch's or the settings of pip:

python scripts/container.py --build-arg TORCH_INDEX=https://example.org/simple
python scripts/container.py --volume /etc/pip.conf:/etc/pip.conf:ro

It takes a few minutes, and 10 GB of disk for a while. buildah and debootstrap are packages of Debian's, and
need root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack

from _venv import run_command

_DEBIAN = "bookworm"
# What the images of Debian have, and what debootstrap cannot say.
_PATH_VARIABLE = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNKNOWN_USER = ["--user", "12345:12345"]  # whom the image does not know, as one's own number may be
_TRIAL_COMMANDS = [([], ["doctor"]), ([], ["demo"]), (_UNKNOWN_USER, ["demo", "--dir", "/save/demo"])]


def main(arguments: list[str]) -> int:
    """Return 0 when the image was built and all went well in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tool", choices=["buildah", "docker", "podman"], default="buildah")
    parser.add_argument("--base", metavar="IMAGE", help="build on this image")
    parser.add_argument("--keep", metavar="NAME", help="keep the image, by this name")
    options, for_build = parser.parse_known_args(arguments)
    # It takes no container runtime, and works inside a container.
    os.environ.setdefault("BUILDAH_ISOLATION", "chroot")
    with ExitStack() as undo:
        tool, base = options.tool, options.base
        if base is None and tool == "buildah":
            base = _create_debian_image(undo)
        image = options.keep or "mmfw-trial"
        on_base = ["--build-arg", f"BASE={base}"] if base else []
        _run_timed([tool, "build", "--tag", image, *on_base, *for_build, "."])
        if not options.keep:
            undo.callback(subprocess.run, [tool, "rmi", image], stdout=subprocess.DEVNULL)
        print(f"The image has {_command_output(tool, 'images', '--format', '{{.Size}}', image)}.", flush=True)
        started = [_create_container(image, undo), "mmfw"] if tool == "buildah" else ["--rm", image]
        for user, words in _TRIAL_COMMANDS:
            _run_timed([tool, "run", *user, *started, *words])
    return 0


def _create_debian_image(cleanup: ExitStack) -> str:
    """The name of a new image of Debian, which has no more than apt needs."""
    image = "mmfw-base"
    container = _create_container("scratch", cleanup)
    _run_timed(["debootstrap", "--variant=minbase", _DEBIAN, _command_output("buildah", "mount", container)])
    run_command(["buildah", "config", "--env", _PATH_VARIABLE, container])
    run_command(["buildah", "commit", "--quiet", container, image])
    cleanup.callback(subprocess.run, ["buildah", "rmi", image], stdout=subprocess.DEVNULL)
    return image


def _create_container(image: str, cleanup: ExitStack) -> str:
    """The name of a new container of buildah's."""
    container = _command_output("buildah", "from", image)
    cleanup.callback(subprocess.run, ["buildah", "rm", container], stdout=subprocess.DEVNULL)
    return container


def _command_output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not installed.")
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        sys.exit(f"Exit code {done.returncode}: {' '.join(command)}")
    return done.stdout.strip()


def _run_timed(command: list[str]) -> None:
    print(f"\n$ {' '.join(command)}", flush=True)
    begun = time.monotonic()
    run_command(command)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
