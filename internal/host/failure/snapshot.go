package failure

import (
	"fmt"
	"strings"
)

// NotFoundError reports a snapshot that does not exist.
type NotFoundError struct{ Tag string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("snapshot %q: not found ('forkd images' lists what there is)", e.Tag)
}

// ExistsError reports a tag that is taken.
type ExistsError struct {
	Tag      string
	InFlight bool // the snapshot with the tag is being made
}

func (e *ExistsError) Error() string {
	if e.InFlight {
		return fmt.Sprintf("snapshot %q: is being made by another call", e.Tag)
	}
	return fmt.Sprintf("snapshot %q: exists; remove it first ('forkd rmi %s') or choose another tag", e.Tag, e.Tag)
}

// ReplacedError reports that a tag now names a different snapshot.
type ReplacedError struct{ Tag string }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("snapshot %q was replaced by another", e.Tag)
}

// InUseError reports a snapshot that cannot be deleted.
type InUseError struct {
	Tag        string
	Dependents []string // tags of the snapshots that build on this snapshot
	Leases     int      // number of sandboxes that run from the snapshot, or have it as their suspended state
	Sandboxes  []string // ids of some of these sandboxes; the store leaves it empty, because it does not know them
}

func (e *InUseError) Error() string {
	switch {
	case len(e.Dependents) == 1:
		return fmt.Sprintf("snapshot %q: %s builds on it: remove that first, or both together with cascade", e.Tag,
			e.Dependents[0])
	case len(e.Dependents) > 1:
		return fmt.Sprintf("snapshot %q: %s build on it: remove them first, or all together with cascade",
			e.Tag, strings.Join(e.Dependents, ", "))
	}
	text := fmt.Sprintf("snapshot %q: in use by %d sandboxes; kill them first", e.Tag, e.Leases)
	if e.Leases == 1 {
		text = fmt.Sprintf("snapshot %q: in use by 1 sandbox; kill it first", e.Tag)
	}
	if len(e.Sandboxes) > 0 {
		text += ": " + strings.Join(e.Sandboxes, ", ")
	}
	return text
}

// DamagedError reports that a snapshot cannot be used, and why.
type DamagedError struct {
	Tag  string
	File string // name of a file in the snapshot's directory, or path of the base image
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("snapshot %q: %s: %v", e.Tag, e.File, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// ArrivingError reports an operation that needs all files of a snapshot, while some of them are
// still arriving.
type ArrivingError struct{ Tag string }

func (e *ArrivingError) Error() string {
	return fmt.Sprintf("snapshot %q: not all of it has arrived yet; until then it can only be forked", e.Tag)
}

// TornError reports that a daemon ended while a snapshot was arriving, so some of its files are
// missing.
type TornError struct{ Tag string }

func (e *TornError) Error() string {
	return fmt.Sprintf("snapshot %q: the daemon ended before all of it had arrived", e.Tag)
}

// EncryptedError reports an operation that is impossible because a snapshot is encrypted. Encrypt,
// Decrypt and Shred also return it for snapshots that they cannot change. Reason says why.
type EncryptedError struct {
	Tag    string
	Reason string
}

func (e *EncryptedError) Error() string { return fmt.Sprintf("snapshot %q: %s", e.Tag, e.Reason) }

// CanEncrypt returns an error if a new snapshot with the given tag cannot be encrypted.
func CanEncrypt(tag string, diskOnly, volumes bool) error {
	switch {
	case diskOnly:
		return &EncryptedError{Tag: tag, Reason: "would be encrypted, and snapshots without memory cannot be encrypted"}
	case volumes: // their layers are also files of the volume, which stay unencrypted
		return &EncryptedError{Tag: tag, Reason: "would be encrypted, and snapshots with volumes cannot be encrypted"}
	}
	return nil
}
