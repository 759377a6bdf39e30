// Made by scripts/generate.ts from docs/errors.md; do not edit.

import { ForkdError } from "../error.ts";

/** The request is wrong (400, `bad_request`). */
export class BadRequestError extends ForkdError {}

/** A field of the request is wrong (400, `invalid_field`). */
export class InvalidFieldError extends ForkdError {}

/** The warm-up failed (400, `warmup_failed`). */
export class WarmupFailedError extends ForkdError {}

/** The snapshot from outside is refused (400, `artifact_refused`). */
export class ArtifactRefusedError extends ForkdError {}

/** The token is missing or wrong (401, `unauthenticated`). */
export class UnauthenticatedError extends ForkdError {}

/** The request is not allowed (403, `forbidden`). */
export class ForbiddenError extends ForkdError {}

/** The token does not allow this (403, `scope`). */
export class ScopeError extends ForkdError {}

/** The snapshot has no signature (403, `not_signed`). */
export class NotSignedError extends ForkdError {}

/** No trusted key has signed the snapshot (403, `key_not_trusted`). */
export class KeyNotTrustedError extends ForkdError {}

/** The signature is damaged, or for another snapshot (403, `signature_invalid`). */
export class SignatureInvalidError extends ForkdError {}

/** The sandbox's kernel denies this (403, `denied_in_sandbox`). */
export class DeniedInSandboxError extends ForkdError {}

/** The registry denies this (403, `denied_by_registry`). */
export class DeniedByRegistryError extends ForkdError {}

/** The path is unknown (404, `no_such_route`). */
export class NoSuchRouteError extends ForkdError {}

/** There is no such sandbox (404, `sandbox_not_found`). */
export class SandboxNotFoundError extends ForkdError {}

/** The sandbox has moved to another host (404, `sandbox_moved`). */
export class SandboxMovedError extends ForkdError {}

/** There is no such snapshot (404, `snapshot_not_found`). */
export class SnapshotNotFoundError extends ForkdError {}

/** There is no such workspace (404, `workspace_not_found`). */
export class WorkspaceNotFoundError extends ForkdError {}

/** There is no such volume (404, `volume_not_found`). */
export class VolumeNotFoundError extends ForkdError {}

/** The sandbox has no such file, process or context (404, `not_found_in_sandbox`). */
export class NotFoundInSandboxError extends ForkdError {}

/** The registry has no such snapshot (404, `not_found_in_registry`). */
export class NotFoundInRegistryError extends ForkdError {}

/** The path does not support this method (405, `method_not_allowed`). */
export class MethodNotAllowedError extends ForkdError {}

/** The request conflicts with the current state (409, `conflict`). */
export class ConflictError extends ForkdError {}

/** The sandbox's state does not allow this (409, `sandbox_state`). */
export class SandboxStateError extends ForkdError {}

/** The sandbox was deleted, suspended or rolled back (409, `sandbox_cut_off`). */
export class SandboxCutOffError extends ForkdError {}

/** The sandbox belongs to a workspace (409, `sandbox_of_workspace`). */
export class SandboxOfWorkspaceError extends ForkdError {}

/** The interpreter is busy (409, `interpreter_busy`). */
export class InterpreterBusyError extends ForkdError {}

/** The changes cannot be applied (409, `apply_conflict`). */
export class ApplyConflictError extends ForkdError {}

/** The sides have no known common ancestor (409, `no_base`). */
export class NoBaseError extends ForkdError {}

/** A hook of the sandbox failed (409, `hook_failed`). */
export class HookFailedError extends ForkdError {}

/** The sandbox cannot be rolled back to this snapshot (409, `not_in_line`). */
export class NotInLineError extends ForkdError {}

/** Programs in the sandbox repeat random numbers (409, `not_unique`). */
export class NotUniqueError extends ForkdError {}

/** A snapshot with this tag exists (409, `snapshot_exists`). */
export class SnapshotExistsError extends ForkdError {}

/** The snapshot is in use (409, `snapshot_in_use`). */
export class SnapshotInUseError extends ForkdError {}

/** The snapshot cannot be used (409, `snapshot_unusable`). */
export class SnapshotUnusableError extends ForkdError {}

/** The encryption of the snapshot forbids this (409, `snapshot_encryption`). */
export class SnapshotEncryptionError extends ForkdError {}

/** A workspace with this name exists (409, `workspace_exists`). */
export class WorkspaceExistsError extends ForkdError {}

/** A volume with this name exists (409, `volume_exists`). */
export class VolumeExistsError extends ForkdError {}

/** A sandbox writes to the volume (409, `volume_in_use`). */
export class VolumeInUseError extends ForkdError {}

/** The snapshot has too few volume slots (409, `no_volume_slots`). */
export class NoVolumeSlotsError extends ForkdError {}

/** The sandbox or the snapshot has volumes (409, `sandbox_has_volumes`). */
export class SandboxHasVolumesError extends ForkdError {}

/** The volume cannot be used (409, `volume_unusable`). */
export class VolumeUnusableError extends ForkdError {}

/** The outcome of the first request is unknown (409, `outcome_unknown`). */
export class OutcomeUnknownError extends ForkdError {}

/** The body is too large (413, `body_too_large`). */
export class BodyTooLargeError extends ForkdError {}

/** The Idempotency-Key was used for another request (422, `idempotency_key_reused`). */
export class IdempotencyKeyReusedError extends ForkdError {}

/** The request must upgrade the connection (426, `upgrade_required`). */
export class UpgradeRequiredError extends ForkdError {}

/** The client exceeds its limit (429, `too_many_requests`). */
export class TooManyRequestsError extends ForkdError {}

/** The daemon has reached its limit of sandboxes (429, `max_sandboxes`). */
export class MaxSandboxesError extends ForkdError {}

/** The daemon has reached its limit of vCPUs (429, `max_vcpus`). */
export class MaxVcpusError extends ForkdError {}

/** The token has reached its limit of sandboxes (429, `own_sandboxes`). */
export class OwnSandboxesError extends ForkdError {}

/** The client has reached its limit of volumes (429, `volume_quota`). */
export class VolumeQuotaError extends ForkdError {}

/** The daemon failed (500, `internal`). */
export class InternalError extends ForkdError {}

/** The VM ended during the request (500, `vm_ended`). */
export class VmEndedError extends ForkdError {}

/** The changes were neither completed nor undone (500, `apply_incomplete`). */
export class ApplyIncompleteError extends ForkdError {}

/** The router does not serve this request (501, `not_routed`). */
export class NotRoutedError extends ForkdError {}

/** The sandbox failed (502, `sandbox_failed`). */
export class SandboxFailedError extends ForkdError {}

/** A node failed during the request (502, `node_failed`). */
export class NodeFailedError extends ForkdError {}

/** The registry cannot be used (502, `registry_failed`). */
export class RegistryFailedError extends ForkdError {}

/** The daemon is busy (503, `busy`). */
export class BusyError extends ForkdError {}

/** The key of an encrypted snapshot cannot be used (503, `key_unavailable`). */
export class KeyUnavailableError extends ForkdError {}

/** The sandbox is moving to another host (503, `sandbox_moving`). */
export class SandboxMovingError extends ForkdError {}

/** The host has too little free memory (503, `host_memory`). */
export class HostMemoryError extends ForkdError {}

/** The host has too little free disk space (503, `host_disk`). */
export class HostDiskError extends ForkdError {}

/** The host cannot run VMs (503, `no_kvm`). */
export class NoKvmError extends ForkdError {}

/** A node cannot be reached (503, `node_unreachable`). */
export class NodeUnreachableError extends ForkdError {}

/** The request timed out (504, `timeout`). */
export class TimeoutError extends ForkdError {}

/** A disk is full (507, `no_space`). */
export class NoSpaceError extends ForkdError {}

/** The class of every code. */
export const errorClasses: Readonly<Record<string, typeof ForkdError>> = {
  bad_request: BadRequestError,
  invalid_field: InvalidFieldError,
  warmup_failed: WarmupFailedError,
  artifact_refused: ArtifactRefusedError,
  unauthenticated: UnauthenticatedError,
  forbidden: ForbiddenError,
  scope: ScopeError,
  not_signed: NotSignedError,
  key_not_trusted: KeyNotTrustedError,
  signature_invalid: SignatureInvalidError,
  denied_in_sandbox: DeniedInSandboxError,
  denied_by_registry: DeniedByRegistryError,
  no_such_route: NoSuchRouteError,
  sandbox_not_found: SandboxNotFoundError,
  sandbox_moved: SandboxMovedError,
  snapshot_not_found: SnapshotNotFoundError,
  workspace_not_found: WorkspaceNotFoundError,
  volume_not_found: VolumeNotFoundError,
  not_found_in_sandbox: NotFoundInSandboxError,
  not_found_in_registry: NotFoundInRegistryError,
  method_not_allowed: MethodNotAllowedError,
  conflict: ConflictError,
  sandbox_state: SandboxStateError,
  sandbox_cut_off: SandboxCutOffError,
  sandbox_of_workspace: SandboxOfWorkspaceError,
  interpreter_busy: InterpreterBusyError,
  apply_conflict: ApplyConflictError,
  no_base: NoBaseError,
  hook_failed: HookFailedError,
  not_in_line: NotInLineError,
  not_unique: NotUniqueError,
  snapshot_exists: SnapshotExistsError,
  snapshot_in_use: SnapshotInUseError,
  snapshot_unusable: SnapshotUnusableError,
  snapshot_encryption: SnapshotEncryptionError,
  workspace_exists: WorkspaceExistsError,
  volume_exists: VolumeExistsError,
  volume_in_use: VolumeInUseError,
  no_volume_slots: NoVolumeSlotsError,
  sandbox_has_volumes: SandboxHasVolumesError,
  volume_unusable: VolumeUnusableError,
  outcome_unknown: OutcomeUnknownError,
  body_too_large: BodyTooLargeError,
  idempotency_key_reused: IdempotencyKeyReusedError,
  upgrade_required: UpgradeRequiredError,
  too_many_requests: TooManyRequestsError,
  max_sandboxes: MaxSandboxesError,
  max_vcpus: MaxVcpusError,
  own_sandboxes: OwnSandboxesError,
  volume_quota: VolumeQuotaError,
  internal: InternalError,
  vm_ended: VmEndedError,
  apply_incomplete: ApplyIncompleteError,
  not_routed: NotRoutedError,
  sandbox_failed: SandboxFailedError,
  node_failed: NodeFailedError,
  registry_failed: RegistryFailedError,
  busy: BusyError,
  key_unavailable: KeyUnavailableError,
  sandbox_moving: SandboxMovingError,
  host_memory: HostMemoryError,
  host_disk: HostDiskError,
  no_kvm: NoKvmError,
  node_unreachable: NodeUnreachableError,
  timeout: TimeoutError,
  no_space: NoSpaceError,
};
