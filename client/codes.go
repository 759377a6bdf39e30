package client

// Code generated from docs/errors.md by codes_test.go. DO NOT EDIT.

// The codes of errors, for errors.Is. docs/errors.md says what helps.
const (
	ErrBadRequest           ErrorCode = "bad_request"            // 400: The request is wrong
	ErrInvalidField         ErrorCode = "invalid_field"          // 400: A field of the request is wrong
	ErrWarmupFailed         ErrorCode = "warmup_failed"          // 400: The warm-up failed
	ErrArtifactRefused      ErrorCode = "artifact_refused"       // 400: The snapshot from outside is refused
	ErrUnauthenticated      ErrorCode = "unauthenticated"        // 401: The token is missing or wrong
	ErrForbidden            ErrorCode = "forbidden"              // 403: The request is not allowed
	ErrScope                ErrorCode = "scope"                  // 403: The token does not allow this
	ErrNotSigned            ErrorCode = "not_signed"             // 403: The snapshot has no signature
	ErrKeyNotTrusted        ErrorCode = "key_not_trusted"        // 403: No trusted key has signed the snapshot
	ErrSignatureInvalid     ErrorCode = "signature_invalid"      // 403: The signature is damaged, or for another snapshot
	ErrDeniedInSandbox      ErrorCode = "denied_in_sandbox"      // 403: The sandbox's kernel denies this
	ErrDeniedByRegistry     ErrorCode = "denied_by_registry"     // 403: The registry denies this
	ErrNoSuchRoute          ErrorCode = "no_such_route"          // 404: The path is unknown
	ErrSandboxNotFound      ErrorCode = "sandbox_not_found"      // 404: There is no such sandbox
	ErrSandboxMoved         ErrorCode = "sandbox_moved"          // 404: The sandbox has moved to another host
	ErrSnapshotNotFound     ErrorCode = "snapshot_not_found"     // 404: There is no such snapshot
	ErrWorkspaceNotFound    ErrorCode = "workspace_not_found"    // 404: There is no such workspace
	ErrVolumeNotFound       ErrorCode = "volume_not_found"       // 404: There is no such volume
	ErrNotFoundInSandbox    ErrorCode = "not_found_in_sandbox"   // 404: The sandbox has no such file, process or context
	ErrNotFoundInRegistry   ErrorCode = "not_found_in_registry"  // 404: The registry has no such snapshot
	ErrMethodNotAllowed     ErrorCode = "method_not_allowed"     // 405: The path does not support this method
	ErrConflict             ErrorCode = "conflict"               // 409: The request conflicts with the current state
	ErrSandboxState         ErrorCode = "sandbox_state"          // 409: The sandbox's state does not allow this
	ErrSandboxCutOff        ErrorCode = "sandbox_cut_off"        // 409: The sandbox was deleted, suspended or rolled back
	ErrSandboxOfWorkspace   ErrorCode = "sandbox_of_workspace"   // 409: The sandbox belongs to a workspace
	ErrInterpreterBusy      ErrorCode = "interpreter_busy"       // 409: The interpreter is busy
	ErrApplyConflict        ErrorCode = "apply_conflict"         // 409: The changes cannot be applied
	ErrNoBase               ErrorCode = "no_base"                // 409: The sides have no known common ancestor
	ErrHookFailed           ErrorCode = "hook_failed"            // 409: A hook of the sandbox failed
	ErrNotInLine            ErrorCode = "not_in_line"            // 409: The sandbox cannot be rolled back to this snapshot
	ErrNotUnique            ErrorCode = "not_unique"             // 409: Programs in the sandbox repeat random numbers
	ErrSnapshotExists       ErrorCode = "snapshot_exists"        // 409: A snapshot with this tag exists
	ErrSnapshotInUse        ErrorCode = "snapshot_in_use"        // 409: The snapshot is in use
	ErrSnapshotUnusable     ErrorCode = "snapshot_unusable"      // 409: The snapshot cannot be used
	ErrSnapshotEncryption   ErrorCode = "snapshot_encryption"    // 409: The encryption of the snapshot forbids this
	ErrWorkspaceExists      ErrorCode = "workspace_exists"       // 409: A workspace with this name exists
	ErrVolumeExists         ErrorCode = "volume_exists"          // 409: A volume with this name exists
	ErrVolumeInUse          ErrorCode = "volume_in_use"          // 409: A sandbox writes to the volume
	ErrNoVolumeSlots        ErrorCode = "no_volume_slots"        // 409: The snapshot has too few volume slots
	ErrSandboxHasVolumes    ErrorCode = "sandbox_has_volumes"    // 409: The sandbox or the snapshot has volumes
	ErrVolumeUnusable       ErrorCode = "volume_unusable"        // 409: The volume cannot be used
	ErrOutcomeUnknown       ErrorCode = "outcome_unknown"        // 409: The outcome of the first request is unknown
	ErrBodyTooLarge         ErrorCode = "body_too_large"         // 413: The body is too large
	ErrIdempotencyKeyReused ErrorCode = "idempotency_key_reused" // 422: The Idempotency-Key was used for another request
	ErrUpgradeRequired      ErrorCode = "upgrade_required"       // 426: The request must upgrade the connection
	ErrTooManyRequests      ErrorCode = "too_many_requests"      // 429: The client exceeds its limit
	ErrMaxSandboxes         ErrorCode = "max_sandboxes"          // 429: The daemon has reached its limit of sandboxes
	ErrMaxVCPUs             ErrorCode = "max_vcpus"              // 429: The daemon has reached its limit of vCPUs
	ErrOwnSandboxes         ErrorCode = "own_sandboxes"          // 429: The token has reached its limit of sandboxes
	ErrVolumeQuota          ErrorCode = "volume_quota"           // 429: The client has reached its limit of volumes
	ErrInternal             ErrorCode = "internal"               // 500: The daemon failed
	ErrVMEnded              ErrorCode = "vm_ended"               // 500: The VM ended during the request
	ErrApplyIncomplete      ErrorCode = "apply_incomplete"       // 500: The changes were neither completed nor undone
	ErrNotRouted            ErrorCode = "not_routed"             // 501: The router does not serve this request
	ErrSandboxFailed        ErrorCode = "sandbox_failed"         // 502: The sandbox failed
	ErrNodeFailed           ErrorCode = "node_failed"            // 502: A node failed during the request
	ErrRegistryFailed       ErrorCode = "registry_failed"        // 502: The registry cannot be used
	ErrBusy                 ErrorCode = "busy"                   // 503: The daemon is busy
	ErrKeyUnavailable       ErrorCode = "key_unavailable"        // 503: The key of an encrypted snapshot cannot be used
	ErrSandboxMoving        ErrorCode = "sandbox_moving"         // 503: The sandbox is moving to another host
	ErrHostMemory           ErrorCode = "host_memory"            // 503: The host has too little free memory
	ErrHostDisk             ErrorCode = "host_disk"              // 503: The host has too little free disk space
	ErrNoKVM                ErrorCode = "no_kvm"                 // 503: The host cannot run VMs
	ErrNodeUnreachable      ErrorCode = "node_unreachable"       // 503: A node cannot be reached
	ErrTimeout              ErrorCode = "timeout"                // 504: The request timed out
	ErrNoSpace              ErrorCode = "no_space"               // 507: A disk is full
)
