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


class ArtifactRefusedError(ForkdError):
    """The snapshot from outside is refused (artifact_refused, 400).

    What helps: pack or push it again where it was made, for a host such as the detail says.
    """


class UnauthenticatedError(ForkdError):
    """The token is missing or wrong (unauthenticated, 401).

    What helps: send the daemon's token as 'Authorization: Bearer TOKEN'.
    """


class ForbiddenError(ForkdError):
    """The request is not allowed (forbidden, 403).

    What helps: send it from a program, not from a web page, and to a host name that the daemon knows.
    """


class ScopeError(ForkdError):
    """The token does not allow this (scope, 403).

    What helps: use a token that allows what the detail names: forkd token new.
    """


class NotSignedError(ForkdError):
    """The snapshot has no signature (not_signed, 403).

    What helps: sign it where it was made (forkd sign), or accept it unsigned with trust=off (--trust off) if
    you know its source.
    """


class KeyNotTrustedError(ForkdError):
    """No trusted key has signed the snapshot (key_not_trusted, 403).

    What helps: if you know the author, trust the key: forkd key trust FILE.pub on the daemon's host.
    """


class SignatureInvalidError(ForkdError):
    """The signature is damaged, or for another snapshot (signature_invalid, 403).

    What helps: do not use the snapshot: somebody may have changed it; its author can sign it again (forkd
    sign).
    """


class DeniedInSandboxError(ForkdError):
    """The sandbox's kernel denies this (denied_in_sandbox, 403).

    What helps: choose another path: /proc and /sys accept no new files, and some file systems are read-only.
    """


class DeniedByRegistryError(ForkdError):
    """The registry denies this (denied_by_registry, 403).

    What helps: log in with docker login, and send the credentials as registry_auth (--registry-auth HOST).
    """


class NoSuchRouteError(ForkdError):
    """The path is unknown (no_such_route, 404).

    What helps: compare the path with GET /openapi.yaml.
    """


class SandboxNotFoundError(ForkdError):
    """There is no such sandbox (sandbox_not_found, 404).

    What helps: list sandboxes with GET /v1/sandboxes (forkd ls).
    """


class SandboxMovedError(ForkdError):
    """The sandbox has moved to another host (sandbox_moved, 404).

    What helps: send the request to a router, or to the daemon of the host that the detail names.
    """


class SnapshotNotFoundError(ForkdError):
    """There is no such snapshot (snapshot_not_found, 404).

    What helps: list snapshots with GET /v1/snapshots (forkd images).
    """


class WorkspaceNotFoundError(ForkdError):
    """There is no such workspace (workspace_not_found, 404).

    What helps: list workspaces with GET /v1/workspaces (forkd workspace list).
    """


class VolumeNotFoundError(ForkdError):
    """There is no such volume (volume_not_found, 404).

    What helps: list volumes with GET /v1/volumes (forkd volume ls).
    """


class NotFoundInSandboxError(ForkdError):
    """The sandbox has no such file, process or context (not_found_in_sandbox, 404).

    What helps: list what the sandbox has: its files, processes or contexts.
    """


class NotFoundInRegistryError(ForkdError):
    """The registry has no such snapshot (not_found_in_registry, 404).

    What helps: compare the reference with the tags in the registry.
    """


class MethodNotAllowedError(ForkdError):
    """The path does not support this method (method_not_allowed, 405).

    What helps: compare the method with GET /openapi.yaml.
    """


class ConflictError(ForkdError):
    """The request conflicts with the current state (conflict, 409).

    What helps: do what the detail says.
    """


class SandboxStateError(ForkdError):
    """The sandbox's state does not allow this (sandbox_state, 409).

    What helps: resume the sandbox, or fork a new one.
    """


class SandboxCutOffError(ForkdError):
    """The sandbox was deleted, suspended or rolled back (sandbox_cut_off, 409).

    What helps: read the sandbox's state before you repeat the request: another client changed it.
    """


class SandboxOfWorkspaceError(ForkdError):
    """The sandbox belongs to a workspace (sandbox_of_workspace, 409).

    What helps: delete the workspace instead.
    """


class InterpreterBusyError(ForkdError):
    """The interpreter is busy (interpreter_busy, 409).

    What helps: wait until the earlier call ends, interrupt it, or use another context.
    """


class ApplyConflictError(ForkdError):
    """The changes cannot be applied (apply_conflict, 409).

    What helps: resolve the conflicts in one of the sandboxes, name other paths, or set prefer to from or
    onto.
    """


class NoBaseError(ForkdError):
    """The sides have no known common ancestor (no_base, 409).

    What helps: set base to a snapshot that both sides come from; 'forkd tree' shows them.
    """


class HookFailedError(ForkdError):
    """A hook of the sandbox failed (hook_failed, 409).

    What helps: correct the command that the detail quotes, or replace the hooks with PUT
    /v1/sandboxes/{id}/hooks (forkd hooks set).
    """


class NotInLineError(ForkdError):
    """The sandbox cannot be rolled back to this snapshot (not_in_line, 409).

    What helps: name a snapshot that comes from the same parent; 'forkd tree' shows which ones do.
    """


class NotUniqueError(ForkdError):
    """Programs in the sandbox repeat random numbers (not_unique, 409).

    What helps: restart the programs that the detail names in a fork hook, start them after the fork, or omit
    unique: strict.
    """


class SnapshotExistsError(ForkdError):
    """A snapshot with this tag exists (snapshot_exists, 409).

    What helps: remove the snapshot first, or choose another tag.
    """


class SnapshotInUseError(ForkdError):
    """The snapshot is in use (snapshot_in_use, 409).

    What helps: delete the sandboxes that run from it; for snapshots that build on it, use cascade or force;
    if it is arriving, wait until all of it is there, or delete it.
    """


class SnapshotUnusableError(ForkdError):
    """The snapshot cannot be used (snapshot_unusable, 409).

    What helps: verify the snapshot, and build it again on this host.
    """


class SnapshotEncryptionError(ForkdError):
    """The encryption of the snapshot forbids this (snapshot_encryption, 409).

    What helps: decrypt the snapshot (forkd decrypt), or do what the detail says.
    """


class WorkspaceExistsError(ForkdError):
    """A workspace with this name exists (workspace_exists, 409).

    What helps: delete the workspace first, or choose another name.
    """


class VolumeExistsError(ForkdError):
    """A volume with this name exists (volume_exists, 409).

    What helps: remove the volume first, or choose another name.
    """


class VolumeInUseError(ForkdError):
    """A sandbox writes to the volume (volume_in_use, 409).

    What helps: end the sandbox that the detail names.
    """


class NoVolumeSlotsError(ForkdError):
    """The snapshot has too few volume slots (no_volume_slots, 409).

    What helps: make a snapshot with more volume slots (forkd build --from TAG --tag NEW --volume-slots N).
    """


class SandboxHasVolumesError(ForkdError):
    """The sandbox or the snapshot has volumes (sandbox_has_volumes, 409).

    What helps: fork the snapshot instead, or copy the files of the volumes out (forkd cp), as the detail
    says.
    """


class VolumeUnusableError(ForkdError):
    """The volume cannot be used (volume_unusable, 409).

    What helps: do what the daemon's log says about the volume, and restart the daemon.
    """


class OutcomeUnknownError(ForkdError):
    """The outcome of the first request is unknown (outcome_unknown, 409).

    What helps: check whether the first request created anything, then send the request with a new
    Idempotency-Key.
    """


class BodyTooLargeError(ForkdError):
    """The body is too large (body_too_large, 413).

    What helps: send a smaller body, or several requests.
    """


class IdempotencyKeyReusedError(ForkdError):
    """The Idempotency-Key was used for another request (idempotency_key_reused, 422).

    What helps: use a new key for each request, and reuse a key only to repeat the same request.
    """


class UpgradeRequiredError(ForkdError):
    """The request must upgrade the connection (upgrade_required, 426).

    What helps: send the headers Connection and Upgrade that docs/api.md describes.
    """


class TooManyRequestsError(ForkdError):
    """The client exceeds its limit (too_many_requests, 429).

    What helps: wait, or end one of the client's requests or sandboxes.
    """


class MaxSandboxesError(ForkdError):
    """The daemon has reached its limit of sandboxes (max_sandboxes, 429).

    What helps: delete or suspend sandboxes, or raise --max-sandboxes.
    """


class MaxVcpusError(ForkdError):
    """The daemon has reached its limit of vCPUs (max_vcpus, 429).

    What helps: delete or suspend sandboxes, or raise --vcpu-overcommit.
    """


class OwnSandboxesError(ForkdError):
    """The token has reached its limit of sandboxes (own_sandboxes, 429).

    What helps: delete sandboxes that were forked with this token.
    """


class VolumeQuotaError(ForkdError):
    """The client has reached its limit of volumes (volume_quota, 429).

    What helps: remove volumes, choose a smaller size, or raise --max-volumes-gib.
    """


class InternalError(ForkdError):
    """The daemon failed (internal, 500).

    What helps: read the daemon's log, and run 'forkd doctor'.
    """


class VmEndedError(ForkdError):
    """The VM ended during the request (vm_ended, 500).

    What helps: repeat the request: the detail says how the VM ended, and whether a saved state is left; if it
    fails again, run 'forkd doctor'.
    """


class ApplyIncompleteError(ForkdError):
    """The changes were neither completed nor undone (apply_incomplete, 500).

    What helps: look at the files that the detail names, or roll the sandbox back to an earlier branch.
    """


class NotRoutedError(ForkdError):
    """The router does not serve this request (not_routed, 501).

    What helps: send the request to the daemon of a node.
    """


class SandboxFailedError(ForkdError):
    """The sandbox failed (sandbox_failed, 502).

    What helps: read the sandbox's console.
    """


class NodeFailedError(ForkdError):
    """A node failed during the request (node_failed, 502).

    What helps: read the log of the daemon on the node that the detail names; the node may have executed the
    request.
    """


class RegistryFailedError(ForkdError):
    """The registry cannot be used (registry_failed, 502).

    What helps: do what the detail says, and try again: blobs that have arrived are not transferred again.
    """


class BusyError(ForkdError):
    """The daemon is busy (busy, 503).

    What helps: try again.
    """


class KeyUnavailableError(ForkdError):
    """The key of an encrypted snapshot cannot be used (key_unavailable, 503).

    What helps: check --key-file or --kms-command of the daemon; a destroyed key cannot be restored.
    """


class SandboxMovingError(ForkdError):
    """The sandbox is moving to another host (sandbox_moving, 503).

    What helps: try again; if the move was interrupted, repeat it (forkd move) or cancel it (forkd move
    --cancel).
    """


class HostMemoryError(ForkdError):
    """The host has too little free memory (host_memory, 503).

    What helps: delete or suspend sandboxes.
    """


class HostDiskError(ForkdError):
    """The host has too little free disk space (host_disk, 503).

    What helps: delete snapshots or sandboxes (see forkd df).
    """


class NoKvmError(ForkdError):
    """The host cannot run VMs (no_kvm, 503).

    What helps: run 'forkd doctor' on the daemon's host; 'forkd machine start' emulates a host with KVM.
    """


class NodeUnreachableError(ForkdError):
    """A node cannot be reached (node_unreachable, 503).

    What helps: repair the node that the detail names, or remove it from the router's list of nodes.
    """


class TimeoutError(ForkdError, builtins.TimeoutError):
    """The request timed out (timeout, 504).

    What helps: raise the timeout, or find out what the sandbox is doing.
    """


class NoSpaceError(ForkdError):
    """A disk is full (no_space, 507).

    What helps: free space on the disk that the detail names.
    """


BY_CODE: dict[str, type[ForkdError]] = {
    "bad_request": BadRequestError,
    "invalid_field": InvalidFieldError,
    "warmup_failed": WarmupFailedError,
    "artifact_refused": ArtifactRefusedError,
    "unauthenticated": UnauthenticatedError,
    "forbidden": ForbiddenError,
    "scope": ScopeError,
    "not_signed": NotSignedError,
    "key_not_trusted": KeyNotTrustedError,
    "signature_invalid": SignatureInvalidError,
    "denied_in_sandbox": DeniedInSandboxError,
    "denied_by_registry": DeniedByRegistryError,
    "no_such_route": NoSuchRouteError,
    "sandbox_not_found": SandboxNotFoundError,
    "sandbox_moved": SandboxMovedError,
    "snapshot_not_found": SnapshotNotFoundError,
    "workspace_not_found": WorkspaceNotFoundError,
    "volume_not_found": VolumeNotFoundError,
    "not_found_in_sandbox": NotFoundInSandboxError,
    "not_found_in_registry": NotFoundInRegistryError,
    "method_not_allowed": MethodNotAllowedError,
    "conflict": ConflictError,
    "sandbox_state": SandboxStateError,
    "sandbox_cut_off": SandboxCutOffError,
    "sandbox_of_workspace": SandboxOfWorkspaceError,
    "interpreter_busy": InterpreterBusyError,
    "apply_conflict": ApplyConflictError,
    "no_base": NoBaseError,
    "hook_failed": HookFailedError,
    "not_in_line": NotInLineError,
    "not_unique": NotUniqueError,
    "snapshot_exists": SnapshotExistsError,
    "snapshot_in_use": SnapshotInUseError,
    "snapshot_unusable": SnapshotUnusableError,
    "snapshot_encryption": SnapshotEncryptionError,
    "workspace_exists": WorkspaceExistsError,
    "volume_exists": VolumeExistsError,
    "volume_in_use": VolumeInUseError,
    "no_volume_slots": NoVolumeSlotsError,
    "sandbox_has_volumes": SandboxHasVolumesError,
    "volume_unusable": VolumeUnusableError,
    "outcome_unknown": OutcomeUnknownError,
    "body_too_large": BodyTooLargeError,
    "idempotency_key_reused": IdempotencyKeyReusedError,
    "upgrade_required": UpgradeRequiredError,
    "too_many_requests": TooManyRequestsError,
    "max_sandboxes": MaxSandboxesError,
    "max_vcpus": MaxVcpusError,
    "own_sandboxes": OwnSandboxesError,
    "volume_quota": VolumeQuotaError,
    "internal": InternalError,
    "vm_ended": VmEndedError,
    "apply_incomplete": ApplyIncompleteError,
    "not_routed": NotRoutedError,
    "sandbox_failed": SandboxFailedError,
    "node_failed": NodeFailedError,
    "registry_failed": RegistryFailedError,
    "busy": BusyError,
    "key_unavailable": KeyUnavailableError,
    "sandbox_moving": SandboxMovingError,
    "host_memory": HostMemoryError,
    "host_disk": HostDiskError,
    "no_kvm": NoKvmError,
    "node_unreachable": NodeUnreachableError,
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
    "ArtifactRefusedError",
    "UnauthenticatedError",
    "ForbiddenError",
    "ScopeError",
    "NotSignedError",
    "KeyNotTrustedError",
    "SignatureInvalidError",
    "DeniedInSandboxError",
    "DeniedByRegistryError",
    "NoSuchRouteError",
    "SandboxNotFoundError",
    "SandboxMovedError",
    "SnapshotNotFoundError",
    "WorkspaceNotFoundError",
    "VolumeNotFoundError",
    "NotFoundInSandboxError",
    "NotFoundInRegistryError",
    "MethodNotAllowedError",
    "ConflictError",
    "SandboxStateError",
    "SandboxCutOffError",
    "SandboxOfWorkspaceError",
    "InterpreterBusyError",
    "ApplyConflictError",
    "NoBaseError",
    "HookFailedError",
    "NotInLineError",
    "NotUniqueError",
    "SnapshotExistsError",
    "SnapshotInUseError",
    "SnapshotUnusableError",
    "SnapshotEncryptionError",
    "WorkspaceExistsError",
    "VolumeExistsError",
    "VolumeInUseError",
    "NoVolumeSlotsError",
    "SandboxHasVolumesError",
    "VolumeUnusableError",
    "OutcomeUnknownError",
    "BodyTooLargeError",
    "IdempotencyKeyReusedError",
    "UpgradeRequiredError",
    "TooManyRequestsError",
    "MaxSandboxesError",
    "MaxVcpusError",
    "OwnSandboxesError",
    "VolumeQuotaError",
    "InternalError",
    "VmEndedError",
    "ApplyIncompleteError",
    "NotRoutedError",
    "SandboxFailedError",
    "NodeFailedError",
    "RegistryFailedError",
    "BusyError",
    "KeyUnavailableError",
    "SandboxMovingError",
    "HostMemoryError",
    "HostDiskError",
    "NoKvmError",
    "NodeUnreachableError",
    "TimeoutError",
    "NoSpaceError",
]
