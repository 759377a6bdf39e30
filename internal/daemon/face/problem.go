package face

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
)

// code is the kind of an error, for programs. Codes are part of the API, so a code never changes
// its meaning.
type code string

// The codes, in the order of their statuses. docs/errors.md describes them for users.
const (
	codeBadRequest       code = "bad_request"
	codeInvalidField     code = "invalid_field"
	codeWarmup           code = "warmup_failed"
	codeArtifact         code = "artifact_refused"
	codeUnauthenticated  code = "unauthenticated"
	codeForbidden        code = "forbidden"
	codeScope            code = "scope"
	codeUnsigned         code = "not_signed"
	codeUnknownKey       code = "key_not_trusted"
	codeBadSignature     code = "signature_invalid"
	codeDenied           code = "denied_in_sandbox"
	codeRegistryDenied   code = "denied_by_registry"
	codeNoRoute          code = "no_such_route"
	codeNoSandbox        code = "sandbox_not_found"
	codeMoved            code = "sandbox_moved"
	codeNoSnapshot       code = "snapshot_not_found"
	codeNoWorkspace      code = "workspace_not_found"
	codeNoVolume         code = "volume_not_found"
	codeNoFile           code = "not_found_in_sandbox"
	codeNoRemote         code = "not_found_in_registry"
	codeMethod           code = "method_not_allowed"
	codeConflict         code = "conflict"
	codeState            code = "sandbox_state"
	codeCutOff           code = "sandbox_cut_off"
	codeHeld             code = "sandbox_of_workspace"
	codeGuestBusy        code = "interpreter_busy"
	codeApplyConflict    code = "apply_conflict"
	codeApplyIncomplete  code = "apply_incomplete"
	codeNoBase           code = "no_base"
	codeHook             code = "hook_failed"
	codeLine             code = "not_in_line"
	codeNotUnique        code = "not_unique"
	codeSnapshotExists   code = "snapshot_exists"
	codeSnapshotInUse    code = "snapshot_in_use"
	codeSnapshotUnusable code = "snapshot_unusable"
	codeEncrypted        code = "snapshot_encryption"
	codeKey              code = "key_unavailable"
	codeWorkspaceExists  code = "workspace_exists"
	codeVolumeExists     code = "volume_exists"
	codeVolumeInUse      code = "volume_in_use"
	codeVolumeUnusable   code = "volume_unusable"
	codeNoVolumeSlots    code = "no_volume_slots"
	codeHasVolumes       code = "sandbox_has_volumes"
	codeOutcomeUnknown   code = "outcome_unknown"
	codeTooLarge         code = "body_too_large"
	codeKeyReused        code = "idempotency_key_reused"
	codeUpgrade          code = "upgrade_required"
	codeRate             code = "too_many_requests"
	codeMaxSandboxes     code = admit.CodeMaxSandboxes
	codeMaxVCPUs         code = admit.CodeMaxVCPUs
	codeOwnSandboxes     code = admit.CodeOwnSandboxes
	codeVolumeQuota      code = admit.CodeVolumeQuota
	codeInternal         code = "internal"
	codeNotRouted        code = "not_routed"
	codeVMEnded          code = "vm_ended"
	codeGuestFailed      code = "sandbox_failed"
	codeNodeFailed       code = "node_failed"
	codeRegistryFailed   code = "registry_failed"
	codeBusy             code = "busy"
	codeMoving           code = "sandbox_moving"
	codeHostMemory       code = admit.CodeHostMemory
	codeHostDisk         code = admit.CodeHostDisk
	codeNoKVM            code = "no_kvm"
	codeNode             code = "node_unreachable"
	codeTimeout          code = "timeout"
	codeNoSpace          code = "no_space"
)

// problem holds the properties that all errors with a code share.
type problem struct {
	status int
	title  string
	fix    string
	retry  time.Duration // time after which the same request may succeed; 0: never
}

// How long a client should wait before it tries again. Requests usually end within a second.
// Sandboxes end less often, and memory and disk space are freed only when a sandbox ends.
const (
	soon  = time.Second
	later = 5 * time.Second
)

var problems = map[code]problem{
	codeBadRequest: {http.StatusBadRequest, "The request is wrong", "correct the request as the detail says", 0},
	codeInvalidField: {http.StatusBadRequest, "A field of the request is wrong", "correct the field as the detail says",
		0},
	codeWarmup: {http.StatusBadRequest, "The warm-up failed", "correct the command or code that the detail quotes",
		0},
	codeArtifact: {http.StatusBadRequest, "The snapshot from outside is refused",
		"pack or push it again where it was made, for a host such as the detail says", 0},
	codeUnauthenticated: {http.StatusUnauthorized, "The token is missing or wrong",
		"send the daemon's token as 'Authorization: Bearer TOKEN'", 0},
	codeForbidden: {http.StatusForbidden, "The request is not allowed",
		"send it from a program, not from a web page, and to a host name that the daemon knows", 0},
	codeScope: {http.StatusForbidden, "The token does not allow this",
		"use a token that allows what the detail names: forkd token new", 0},
	codeUnsigned: {http.StatusForbidden, "The snapshot has no signature",
		"sign it where it was made (forkd sign), or accept it unsigned with trust=off (--trust off) if you know its source", 0},
	codeUnknownKey: {http.StatusForbidden, "No trusted key has signed the snapshot",
		"if you know the author, trust the key: forkd key trust FILE.pub on the daemon's host", 0},
	codeBadSignature: {http.StatusForbidden, "The signature is damaged, or for another snapshot",
		"do not use the snapshot: somebody may have changed it; its author can sign it again (forkd sign)", 0},
	codeDenied: {http.StatusForbidden, "The sandbox's kernel denies this",
		"choose another path: /proc and /sys accept no new files, and some file systems are read-only", 0},
	codeRegistryDenied: {http.StatusForbidden, "The registry denies this",
		"log in with docker login, and send the credentials as registry_auth (--registry-auth HOST)", 0},
	codeNoRoute: {http.StatusNotFound, "The path is unknown", "compare the path with GET /openapi.yaml", 0},
	codeNoSandbox: {http.StatusNotFound, "There is no such sandbox",
		"list sandboxes with GET /v1/sandboxes (forkd ls)", 0},
	codeMoved: {http.StatusNotFound, "The sandbox has moved to another host",
		"send the request to a router, or to the daemon of the host that the detail names", 0},
	codeNoSnapshot: {http.StatusNotFound, "There is no such snapshot",
		"list snapshots with GET /v1/snapshots (forkd images)", 0},
	codeNoWorkspace: {http.StatusNotFound, "There is no such workspace",
		"list workspaces with GET /v1/workspaces (forkd workspace list)", 0},
	codeNoVolume: {http.StatusNotFound, "There is no such volume",
		"list volumes with GET /v1/volumes (forkd volume ls)", 0},
	codeNoFile: {http.StatusNotFound, "The sandbox has no such file, process or context",
		"list what the sandbox has: its files, processes or contexts", 0},
	codeNoRemote: {http.StatusNotFound, "The registry has no such snapshot",
		"compare the reference with the tags in the registry", 0},
	codeMethod: {http.StatusMethodNotAllowed, "The path does not support this method",
		"compare the method with GET /openapi.yaml", 0},
	codeConflict: {http.StatusConflict, "The request conflicts with the current state", "do what the detail says", 0},
	codeState: {http.StatusConflict, "The sandbox's state does not allow this",
		"resume the sandbox, or fork a new one", 0},
	codeCutOff: {http.StatusConflict, "The sandbox was deleted, suspended or rolled back",
		"read the sandbox's state before you repeat the request: another client changed it", 0},
	codeHeld: {http.StatusConflict, "The sandbox belongs to a workspace", "delete the workspace instead", 0},
	codeGuestBusy: {http.StatusConflict, "The interpreter is busy",
		"wait until the earlier call ends, interrupt it, or use another context", later},
	codeNotUnique: {http.StatusConflict, "Programs in the sandbox repeat random numbers",
		"restart the programs that the detail names in a fork hook, start them after the fork, or omit unique: strict",
		0},
	codeApplyConflict: {http.StatusConflict, "The changes cannot be applied",
		"resolve the conflicts in one of the sandboxes, name other paths, or set prefer to from or onto", 0},
	codeApplyIncomplete: {http.StatusInternalServerError, "The changes were neither completed nor undone",
		"look at the files that the detail names, or roll the sandbox back to an earlier branch", 0},
	codeNoBase: {http.StatusConflict, "The sides have no known common ancestor",
		"set base to a snapshot that both sides come from; 'forkd tree' shows them", 0},
	codeHook: {http.StatusConflict, "A hook of the sandbox failed",
		"correct the command that the detail quotes, or replace the hooks with PUT /v1/sandboxes/{id}/hooks (forkd hooks set)",
		0},
	codeLine: {http.StatusConflict, "The sandbox cannot be rolled back to this snapshot",
		"name a snapshot that comes from the same parent; 'forkd tree' shows which ones do", 0},
	codeSnapshotExists: {http.StatusConflict, "A snapshot with this tag exists",
		"remove the snapshot first, or choose another tag", 0},
	codeSnapshotInUse: {http.StatusConflict, "The snapshot is in use",
		"delete the sandboxes that run from it; for snapshots that build on it, use cascade or force; if it is arriving, " +
			"wait until all of it is there, or delete it", 0},
	codeSnapshotUnusable: {http.StatusConflict, "The snapshot cannot be used",
		"verify the snapshot, and build it again on this host", 0},
	codeEncrypted: {http.StatusConflict, "The encryption of the snapshot forbids this",
		"decrypt the snapshot (forkd decrypt), or do what the detail says", 0},
	codeKey: {http.StatusServiceUnavailable, "The key of an encrypted snapshot cannot be used",
		"check --key-file or --kms-command of the daemon; a destroyed key cannot be restored", 0},
	codeWorkspaceExists: {http.StatusConflict, "A workspace with this name exists",
		"delete the workspace first, or choose another name", 0},
	codeVolumeExists: {http.StatusConflict, "A volume with this name exists",
		"remove the volume first, or choose another name", 0},
	codeVolumeInUse: {http.StatusConflict, "A sandbox writes to the volume",
		"end the sandbox that the detail names", 0},
	codeNoVolumeSlots: {http.StatusConflict, "The snapshot has too few volume slots",
		"make a snapshot with more volume slots (forkd build --from TAG --tag NEW --volume-slots N)", 0},
	codeHasVolumes: {http.StatusConflict, "The sandbox or the snapshot has volumes",
		"fork the snapshot instead, or copy the files of the volumes out (forkd cp), as the detail says", 0},
	codeVolumeUnusable: {http.StatusConflict, "The volume cannot be used",
		"do what the daemon's log says about the volume, and restart the daemon", 0},
	codeOutcomeUnknown: {http.StatusConflict, "The outcome of the first request is unknown",
		"check whether the first request created anything, then send the request with a new Idempotency-Key", 0},
	codeTooLarge: {http.StatusRequestEntityTooLarge, "The body is too large",
		"send a smaller body, or several requests", 0},
	codeKeyReused: {http.StatusUnprocessableEntity, "The Idempotency-Key was used for another request",
		"use a new key for each request, and reuse a key only to repeat the same request", 0},
	codeUpgrade: {http.StatusUpgradeRequired, "The request must upgrade the connection",
		"send the headers Connection and Upgrade that docs/api.md describes", 0},
	codeRate: {http.StatusTooManyRequests, "The client exceeds its limit",
		"wait, or end one of the client's requests or sandboxes", later},
	codeMaxSandboxes: {http.StatusTooManyRequests, "The daemon has reached its limit of sandboxes",
		"delete or suspend sandboxes, or raise --max-sandboxes", later},
	codeMaxVCPUs: {http.StatusTooManyRequests, "The daemon has reached its limit of vCPUs",
		"delete or suspend sandboxes, or raise --vcpu-overcommit", later},
	codeOwnSandboxes: {http.StatusTooManyRequests, "The token has reached its limit of sandboxes",
		"delete sandboxes that were forked with this token", later},
	codeVolumeQuota: {http.StatusTooManyRequests, "The client has reached its limit of volumes",
		"remove volumes, choose a smaller size, or raise --max-volumes-gib", 0},
	codeInternal: {http.StatusInternalServerError, "The daemon failed",
		"read the daemon's log, and run 'forkd doctor'", 0},
	codeNotRouted: {http.StatusNotImplemented, "The router does not serve this request",
		"send the request to the daemon of a node", 0},
	codeVMEnded: {http.StatusInternalServerError, "The VM ended during the request",
		"repeat the request: the detail says how the VM ended, and whether a saved state is left; if it fails again, run 'forkd doctor'",
		0},
	codeGuestFailed: {http.StatusBadGateway, "The sandbox failed", "read the sandbox's console", 0},
	codeNodeFailed: {http.StatusBadGateway, "A node failed during the request",
		"read the log of the daemon on the node that the detail names; the node may have executed the request", 0},
	codeRegistryFailed: {http.StatusBadGateway, "The registry cannot be used",
		"do what the detail says, and try again: blobs that have arrived are not transferred again", later},
	codeBusy: {http.StatusServiceUnavailable, "The daemon is busy", "try again", soon},
	codeMoving: {http.StatusServiceUnavailable, "The sandbox is moving to another host",
		"try again; if the move was interrupted, repeat it (forkd move) or cancel it (forkd move --cancel)", soon},
	codeHostMemory: {http.StatusServiceUnavailable, "The host has too little free memory", "delete or suspend sandboxes",
		later},
	codeHostDisk: {http.StatusServiceUnavailable, "The host has too little free disk space",
		"delete snapshots or sandboxes (see forkd df)", later},
	codeNoKVM: {http.StatusServiceUnavailable, "The host cannot run VMs",
		"run 'forkd doctor' on the daemon's host; 'forkd machine start' emulates a host with KVM", 0},
	codeNode: {http.StatusServiceUnavailable, "A node cannot be reached",
		"repair the node that the detail names, or remove it from the router's list of nodes", later},
	codeTimeout: {http.StatusGatewayTimeout, "The request timed out",
		"raise the timeout, or find out what the sandbox is doing", 0},
	codeNoSpace: {http.StatusInsufficientStorage, "A disk is full", "free space on the disk that the detail names", 0},
}

// problemDocs is the address of the page that describes the codes. Each code has a section on that
// page. The field "type" of a problem is the address of the section about the problem's code.
const problemDocs = "https://github.com/forkd/forkd/blob/main/docs/errors.md#"

// ConflictError means that changes were not applied, because both sides have changed the same files.
type ConflictError struct {
	ID, From  string
	Conflicts uint64
	Files     []apiv1.ApplyFile // some or all of the conflicts
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("apply %s to sandbox %q: both have changed %d files since their common snapshot; nothing was applied",
		e.From, e.ID, e.Conflicts)
}

// ProblemOf returns the description of an error for clients.
func ProblemOf(err error) apiv1.Error {
	c := codeOf(err)
	p := problems[c]
	body := apiv1.Error{Message: err.Error(), Type: problemDocs + string(c), Title: p.title, Status: p.status,
		Detail: err.Error(), Code: string(c), Fix: p.fix}
	var field *invalid.Error
	if c == codeInvalidField && errors.As(err, &field) {
		body.Field = field.Field
	}
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		body.Conflicts = conflict.Files
	}
	var closed *owner.ClosedError
	if errors.As(err, &closed) {
		body.Field = closed.Field
	}
	return body
}

// WriteProblem answers with an error, as RFC 9457 defines it.
func WriteProblem(w http.ResponseWriter, err error) {
	body := ProblemOf(err)
	if retry := problems[code(body.Code)].retry; retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(retry.Seconds())))
	}
	SetNode(w, err)
	p, err := json.Marshal(body)
	if err != nil { // a struct of text and numbers can always be encoded
		p = []byte(`{"error": "internal"}`)
	}
	p = append(p, '\n')
	w.Header().Set("Content-Type", apiv1.Problem)
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.WriteHeader(body.Status)
	_, _ = w.Write(p) // fails only if the client has left
}
