"""Build the container image, and run doctor and the demo in it.

python scripts/container.py                    with buildah, on a Debian image that debootstrap creates
python scripts/container.py --base IMAGE       ... on this image
python scripts/container.py --tool docker      with Docker or podman, on the base image of the Dockerfile
python scripts/container.py --keep mmfw        keep the image under this name

Other arguments are passed to `build`, such as another index for PyTorch or the settings of pip:

python scripts/container.py --build-arg TORCH_INDEX=https://example.org/simple
python scripts/container.py --volume /etc/pip.conf:/etc/pip.conf:ro

It takes a few minutes, and temporarily 10 GB of disk. buildah and debootstrap are Debian packages and need
root.
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
# Debian's official images set it; debootstrap cannot.
_PATH_VARIABLE = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNKNOWN_USER = ["--user", "12345:12345"]  # not in the image's /etc/passwd, as the ID of a host's user may be
_TRIAL_COMMANDS = [([], ["doctor"]), ([], ["demo"]), (_UNKNOWN_USER, ["demo", "--dir", "/save/demo"])]


def main(arguments: list[str]) -> int:
    """Return 0 if the image was built and all commands succeeded in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tool", choices=["buildah", "docker", "podman"], default="buildah")
    parser.add_argument("--base", metavar="IMAGE", help="build on this image")
    parser.add_argument("--keep", metavar="NAME", help="keep the image under this name")
    options, build_arguments = parser.parse_known_args(arguments)
    # This isolation needs no container runtime and works inside a container.
    os.environ.setdefault("BUILDAH_ISOLATION", "chroot")
    with ExitStack() as cleanup:
        tool, base = options.tool, options.base
        if base is None and tool == "buildah":
            base = _create_debian_image(cleanup)
        image = options.keep or "mmfw-trial"
        base_arguments = ["--build-arg", f"BASE={base}"] if base else []
        _run_timed([tool, "build", "--tag", image, *base_arguments, *build_arguments, "."])
        if not options.keep:
            cleanup.callback(subprocess.run, [tool, "rmi", image], stdout=subprocess.DEVNULL)
        print(f"The image has {_command_output(tool, 'images', '--format', '{{.Size}}', image)}.", flush=True)
        container = [_create_container(image, cleanup), "mmfw"] if tool == "buildah" else ["--rm", image]
        for user, arguments in _TRIAL_COMMANDS:
            _run_timed([tool, "run", *user, *container, *arguments])
    return 0


def _create_debian_image(cleanup: ExitStack) -> str:
    """Create a Debian image with only what apt needs, and return its name."""
    image = "mmfw-base"
    container = _create_container("scratch", cleanup)
    _run_timed(["debootstrap", "--variant=minbase", _DEBIAN, _command_output("buildah", "mount", container)])
    run_command(["buildah", "config", "--env", _PATH_VARIABLE, container])
    run_command(["buildah", "commit", "--quiet", container, image])
    cleanup.callback(subprocess.run, ["buildah", "rmi", image], stdout=subprocess.DEVNULL)
    return image


def _create_container(image: str, cleanup: ExitStack) -> str:
    """Create a container with buildah and return its name."""
    container = _command_output("buildah", "from", image)
    cleanup.callback(subprocess.run, ["buildah", "rm", container], stdout=subprocess.DEVNULL)
    return container


def _command_output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not installed.")
    result = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    if result.returncode:
        sys.exit(f"Exit code {result.returncode}: {' '.join(command)}")
    return result.stdout.strip()


def _run_timed(command: list[str]) -> None:
    print(f"\n$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    run_command(command)
    print(f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
