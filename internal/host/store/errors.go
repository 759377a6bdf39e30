package store

import "github.com/forkd/forkd/internal/host/failure"

// Errors of the store, see package failure.
type (
	NotFoundError  = failure.NotFoundError
	ExistsError    = failure.ExistsError
	ReplacedError  = failure.ReplacedError
	InUseError     = failure.InUseError
	DamagedError   = failure.DamagedError
	ArrivingError  = failure.ArrivingError
	TornError      = failure.TornError
	EncryptedError = failure.EncryptedError
)

// writesPlain returns the error for operations that would write unencrypted data of an encrypted
// snapshot.
func writesPlain(tag string) error {
	return &EncryptedError{Tag: tag, Reason: "is encrypted, and this would write its data in clear; 'forkd decrypt " + tag +
		"' makes that possible"}
}
