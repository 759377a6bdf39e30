package ledger

import (
	"encoding/json"
	"errors"
	"regexp"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
)

// MaxAnnotation bounds an annotation in bytes. The annotation is part of a record that is written
// often.
const MaxAnnotation = 64 << 10

// MaxEnv bounds the environment of a child in bytes of JSON. The environment is part of the child's
// record, which is in the daemon's memory and in a file in RAM. Linux does not start a program with
// a variable of 128 KiB or more (execve(2)).
const MaxEnv = 128 << 10

// hostnamePrefix matches labels of DNS names (RFC 1123) that leave room for a suffix.
var hostnamePrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// CheckGiven checks the parts of a request for a fork that become parts of the children's records.
// The prefix of host names may be empty, and the hooks may be nil.
func CheckGiven(env map[string]string, prefix string, annotation json.RawMessage, hooks *snapshot.Hooks,
	labels map[string]string) error {
	if err := snapshot.CheckEnv(env); err != nil {
		return &invalid.Error{Field: "env", Reason: err.Error()}
	}
	if p, err := json.Marshal(env); err != nil || len(p) > MaxEnv {
		return invalid.Errorf("env", "%d bytes as JSON: want at most %d; write what is larger to a file", len(p), MaxEnv)
	}
	if prefix != "" && !hostnamePrefix.MatchString(prefix) {
		return invalid.Errorf("hostname_prefix", "%q: want up to 40 lower-case letters, digits and inner dashes", prefix)
	}
	if len(annotation) > MaxAnnotation {
		return invalid.Errorf("annotation", "%d bytes: want at most %d", len(annotation), MaxAnnotation)
	}
	if hooks != nil {
		if err := CheckHooks("hooks.", *hooks); err != nil {
			return err
		}
	}
	return CheckLabels(labels)
}

// CheckHooks checks the hooks in a request. In errors, prefix precedes the names of fields.
func CheckHooks(prefix string, hooks snapshot.Hooks) error {
	var wrong *snapshot.HookError
	if errors.As(hooks.Check(), &wrong) {
		return &invalid.Error{Field: prefix + wrong.Field, Reason: wrong.Reason}
	}
	return nil
}
