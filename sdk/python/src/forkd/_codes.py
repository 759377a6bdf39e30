# Made from docs/errors.md by tools/errors.py. Do not edit.
"""One class for every code of an error."""

from __future__ import annotations

import builtins

from ._errors import ForkdError


class BadRequestError(ForkdError):
    """The request is wrong (bad_request, 400).

    What helps: correct the request as the detail says.
    """


class InvalidFieldError(ForkdError):
    """A field of the request is wrong (invalid_field, 400).

    What helps: correct the field as the detail says.
    """


class WarmupFailedError(ForkdError):
    """The warm-up failed (warmup_failed, 400).

    What helps: correct the command or code that the detail quotes.
    """


class UnauthenticatedError(ForkdError):
    """The token is missing or wrong (unauthenticated, 401).

    What helps: send the daemon's token as 'Authorization: Bearer TOKEN'.
    """


class ForbiddenError(ForkdError):
    """The request is not allowed (forbidden, 403).

    What helps: make it from a program, by a name of the host that the daemon knows, and with a token that
    may.
    """


class ScopeError(ForkdError):
    """The token may not do this (scope, 403).

    What helps: use a token that may, as the detail says: forkd token new.
    """


class DeniedInSandboxError(ForkdError):
    """The sandbox's kernel does not permit it (denied_in_sandbox, 403).

    What helps: choose another path: /proc and /sys take no new files, and some file systems no writes.
    """


class NoSuchRouteError(ForkdError):
    """There is no such route (no_such_route, 404).

    What helps: compare the path with GET /openapi.yaml.
    """


class SandboxNotFoundError(ForkdError):
    """There is no such sandbox (sandbox_not_found, 404).

    What helps: list sandboxes with GET /v1/sandboxes (forkd ls).
    """


class SnapshotNotFoundError(ForkdError):
    """There is no such snapshot (snapshot_not_found, 404).

    What helps: list snapshots with GET /v1/snapshots (forkd images).
    """


class WorkspaceNotFoundError(ForkdError):
    """There is no such workspace (workspace_not_found, 404).

    What helps: list workspaces with GET /v1/workspaces (forkd workspace list).
    """


class NotFoundInSandboxError(ForkdError):
    """The sandbox does not have it (not_found_in_sandbox, 404).

    What helps: look for it in the sandbox.
    """


class MethodNotAllowedError(ForkdError):
    """The path has no such method (method_not_allowed, 405).

    What helps: compare the method with GET /openapi.yaml.
    """


class ConflictError(ForkdError):
    """Something is in the way (conflict, 409).

    What helps: do what the detail says.
    """


class SandboxStateError(ForkdError):
    """The sandbox is not in the state for this (sandbox_state, 409).

    What helps: resume the sandbox, or fork another.
    """


class SandboxCutOffError(ForkdError):
    """The sandbox was taken away meanwhile (sandbox_cut_off, 409).

    What helps: find out who deleted, suspended or rolled it back, before the request is made again.
    """


class SandboxOfWorkspaceError(ForkdError):
    """The sandbox belongs to a workspace (sandbox_of_workspace, 409).

    What helps: delete the workspace instead.
    """


class InterpreterBusyError(ForkdError):
    """The interpreter is busy (interpreter_busy, 409).

    What helps: wait for the earlier call, interrupt it, or use another context.
    """


class NotInLineError(ForkdError):
    """The snapshot is not in the line of the sandbox (not_in_line, 409).

    What helps: name one of those that the detail lists.
    """


class NotUniqueError(ForkdError):
    """Programs in the sandbox repeat random numbers (not_unique, 409).

    What helps: restart the programs that the detail names in a fork hook, start them after the fork, or leave
    out unique: strict.
    """


class SnapshotExistsError(ForkdError):
    """The tag is taken (snapshot_exists, 409).

    What helps: remove the snapshot first, or choose another tag.
    """


class SnapshotInUseError(ForkdError):
    """The snapshot is in use (snapshot_in_use, 409).

    What helps: end what uses it first; cascade or force concern snapshots that build on it.
    """


class SnapshotUnusableError(ForkdError):
    """The snapshot cannot be used (snapshot_unusable, 409).

    What helps: verify the snapshot, and make it again on this host.
    """


class WorkspaceExistsError(ForkdError):
    """The name is taken (workspace_exists, 409).

    What helps: delete the workspace first, or choose another name.
    """


class OutcomeUnknownError(ForkdError):
    """Nobody knows what became of the first request (outcome_unknown, 409).

    What helps: look whether what it was to make is there, then ask again with another Idempotency-Key.
    """


class BodyTooLargeError(ForkdError):
    """The body is too large (body_too_large, 413).

    What helps: send less at once.
    """


class IdempotencyKeyReusedError(ForkdError):
    """The Idempotency-Key was used for another request (idempotency_key_reused, 422).

    What helps: use a new key for every request, and the same only to ask again.
    """


class UpgradeRequiredError(ForkdError):
    """The request must ask for an upgrade (upgrade_required, 426).

    What helps: send the headers Connection and Upgrade as the documentation says.
    """


class TooManyRequestsError(ForkdError):
    """More than this client may (too_many_requests, 429).

    What helps: wait, or end something first.
    """


class MaxSandboxesError(ForkdError):
    """The daemon takes no more sandboxes (max_sandboxes, 429).

    What helps: end or suspend sandboxes, or raise --max-sandboxes.
    """


class MaxVcpusError(ForkdError):
    """The daemon takes no more vCPUs (max_vcpus, 429).

    What helps: end or suspend sandboxes, or raise --vcpu-overcommit.
    """


class OwnSandboxesError(ForkdError):
    """The token has all the sandboxes that it may (own_sandboxes, 429).

    What helps: end some that were forked with it.
    """


class InternalError(ForkdError):
    """The daemon failed (internal, 500).

    What helps: look at the log of the daemon, and run 'forkd doctor'.
    """


class VmEndedError(ForkdError):
    """The VM ended meanwhile (vm_ended, 500).

    What helps: ask again: the detail says how it ended, and what is left; if that repeats, run 'forkd
    doctor'.
    """


class SandboxFailedError(ForkdError):
    """The sandbox failed (sandbox_failed, 502).

    What helps: look at the console of the sandbox.
    """


class BusyError(ForkdError):
    """Too much at once (busy, 503).

    What helps: try again.
    """


class HostMemoryError(ForkdError):
    """The host has too little free memory (host_memory, 503).

    What helps: end or suspend sandboxes.
    """


class HostDiskError(ForkdError):
    """The host has too little free disk (host_disk, 503).

    What helps: remove snapshots or sandboxes (see forkd df).
    """


class NoKvmError(ForkdError):
    """The host cannot run VMs (no_kvm, 503).

    What helps: run 'forkd doctor' on the daemon's host; 'forkd machine start' emulates one that can.
    """


class TimeoutError(ForkdError, builtins.TimeoutError):
    """It took too long (timeout, 504).

    What helps: give it more time, or look at what the sandbox does.
    """


class NoSpaceError(ForkdError):
    """A disk is full (no_space, 507).

    What helps: free room on the disk that the detail names.
    """


BY_CODE: dict[str, type[ForkdError]] = {
    "bad_request": BadRequestError,
    "invalid_field": InvalidFieldError,
    "warmup_failed": WarmupFailedError,
    "unauthenticated": UnauthenticatedError,
    "forbidden": ForbiddenError,
    "scope": ScopeError,
    "denied_in_sandbox": DeniedInSandboxError,
    "no_such_route": NoSuchRouteError,
    "sandbox_not_found": SandboxNotFoundError,
    "snapshot_not_found": SnapshotNotFoundError,
    "workspace_not_found": WorkspaceNotFoundError,
    "not_found_in_sandbox": NotFoundInSandboxError,
    "method_not_allowed": MethodNotAllowedError,
    "conflict": ConflictError,
    "sandbox_state": SandboxStateError,
    "sandbox_cut_off": SandboxCutOffError,
    "sandbox_of_workspace": SandboxOfWorkspaceError,
    "interpreter_busy": InterpreterBusyError,
    "not_in_line": NotInLineError,
    "not_unique": NotUniqueError,
    "snapshot_exists": SnapshotExistsError,
    "snapshot_in_use": SnapshotInUseError,
    "snapshot_unusable": SnapshotUnusableError,
    "workspace_exists": WorkspaceExistsError,
    "outcome_unknown": OutcomeUnknownError,
    "body_too_large": BodyTooLargeError,
    "idempotency_key_reused": IdempotencyKeyReusedError,
    "upgrade_required": UpgradeRequiredError,
    "too_many_requests": TooManyRequestsError,
    "max_sandboxes": MaxSandboxesError,
    "max_vcpus": MaxVcpusError,
    "own_sandboxes": OwnSandboxesError,
    "internal": InternalError,
    "vm_ended": VmEndedError,
    "sandbox_failed": SandboxFailedError,
    "busy": BusyError,
    "host_memory": HostMemoryError,
    "host_disk": HostDiskError,
    "no_kvm": NoKvmError,
    "timeout": TimeoutError,
    "no_space": NoSpaceError,
}

BY_STATUS: dict[int, type[ForkdError]] = {
    400: BadRequestError,
    401: UnauthenticatedError,
    403: ForbiddenError,
    405: MethodNotAllowedError,
    409: ConflictError,
    413: BodyTooLargeError,
    426: UpgradeRequiredError,
    429: TooManyRequestsError,
    500: InternalError,
    502: SandboxFailedError,
    503: BusyError,
    504: TimeoutError,
    507: NoSpaceError,
}

__all__ = [
    "BadRequestError",
    "InvalidFieldError",
    "WarmupFailedError",
    "UnauthenticatedError",
    "ForbiddenError",
    "ScopeError",
    "DeniedInSandboxError",
    "NoSuchRouteError",
    "SandboxNotFoundError",
    "SnapshotNotFoundError",
    "WorkspaceNotFoundError",
    "NotFoundInSandboxError",
    "MethodNotAllowedError",
    "ConflictError",
    "SandboxStateError",
    "SandboxCutOffError",
    "SandboxOfWorkspaceError",
    "InterpreterBusyError",
    "NotInLineError",
    "NotUniqueError",
    "SnapshotExistsError",
    "SnapshotInUseError",
    "SnapshotUnusableError",
    "WorkspaceExistsError",
    "OutcomeUnknownError",
    "BodyTooLargeError",
    "IdempotencyKeyReusedError",
    "UpgradeRequiredError",
    "TooManyRequestsError",
    "MaxSandboxesError",
    "MaxVcpusError",
    "OwnSandboxesError",
    "InternalError",
    "VmEndedError",
    "SandboxFailedError",
    "BusyError",
    "HostMemoryError",
    "HostDiskError",
    "NoKvmError",
    "TimeoutError",
    "NoSpaceError",
]
