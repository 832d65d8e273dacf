"""Sandboxes by name."""

from rime_jax.envs.codebase import apptainer, bubblewrap, containers, sandbox, unsafe

NAMES = ("auto", "bubblewrap", "docker", "podman", "apptainer", "unsafe")


def make(name: str, limits: sandbox.Limits) -> sandbox.Sandbox:
    """Args:
      name: of `NAMES`; `auto` is bubblewrap, and never one that has to be set up or is unsafe.
      limits: of each workspace.

    Raises:
      SandboxError: it does not work here; with what helps.
    """
    if name == "auto":
        return _bubblewrap_or_advice(limits)
    if name == "bubblewrap":
        return bubblewrap.Bubblewrap(limits)
    if name in ("docker", "podman"):
        return containers.Containers(name, limits)
    if name == "apptainer":
        return apptainer.Apptainer(limits)
    if name == "unsafe":
        return unsafe.Unsafe(limits)
    raise ValueError(f"no sandbox is called {name!r}; choose one of {', '.join(NAMES)}")


def _bubblewrap_or_advice(limits: sandbox.Limits) -> sandbox.Sandbox:
    try:
        box = bubblewrap.Bubblewrap(limits)
        box.check()
    except sandbox.SandboxError as error:
        raise sandbox.SandboxError(
            f"no sandbox works here ({error}). Either install bubblewrap and allow user namespaces "
            "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0), or "
            "set env.sandbox to docker, podman or apptainer where there is one, or, on a machine "
            "that holds nothing else, to unsafe") from error
    return box
