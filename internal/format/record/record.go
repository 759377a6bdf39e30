// Package record is the format of the daemon's records. There are records of sandboxes, suspended
// sandboxes, the secrets of a sandbox's network, workspaces, volumes, containers, names of images,
// base images, answers to requests that are executed only once, and sandboxes that move to or from
// another host.
//
// A record is one JSON object. All kinds of records share one version number. A reader accepts the
// present version, and version 0, the form of records before they had a version. It refuses other
// versions and unknown fields. It also refuses a record without a field whose absence would give
// more rights: a record without a network policy is damaged, and is never read as "may connect to
// everything".
//
// Only this package uses the structs, so that no change of a protocol or an API can change the
// files. A change of a struct requires a higher Version. The previous version's struct is then
// moved to a separate file, like v0.go, with a golden file in testdata. The package encodes,
// decodes and checks. The packages that write records decide where to store them, when to flush
// them, and what their values mean.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Version is the version of new records.
const Version = 1

// Error reports a defect of a record, and how to correct it.
type Error struct {
	Path   string // path of the record's file
	Field  string // such as "network.mode" or "frozen[1].name"; empty if the defect is not in one field
	Reason string

	Torn bool // the file is not JSON, because it is truncated or another program has overwritten it
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Path + ": " + e.Reason
	}
	return e.Path + ": " + e.Field + ": " + e.Reason
}

// fault is an Error without the path of the file.
type fault struct{ field, reason string }

func (f *fault) Error() string { return "encode a record: " + f.field + ": " + f.reason }

func (f *fault) in(path string) *Error { return &Error{Path: path, Field: f.field, Reason: f.reason} }

func wrong(field, format string, args ...any) *fault {
	return &fault{field, fmt.Sprintf(format, args...)}
}

// otherForkd is the advice in an error about a record that this forkd cannot read, for example
// because it has an unknown version or field. Probably another forkd wrote it.
const otherForkd = "use the forkd that wrote it"

// parse decodes a record of any version. It decodes a record of the present version into *now. It
// decodes a record of version 0 into *old, and then calls upgrade() to convert *old to *now.
func parse(path string, p []byte, now, old any, upgrade func()) error {
	version, err := versionOf(p)
	if err != nil {
		return &Error{Path: path, Reason: "no whole JSON object, so truncated or damaged: " + err.Error(), Torn: true}
	}
	var f *fault
	switch string(version) {
	case "":
		if f = decode(p, old); f == nil {
			upgrade()
		}
	case strconv.Itoa(Version):
		f = decode(p, now)
	default:
		f = wrong("version", "%.20s: this forkd reads version %d and records without a version: %s",
			version, Version, otherForkd)
	}
	if f != nil {
		return f.in(path)
	}
	return nil
}

// versionOf returns the text of a record's version. For version 0, the text is empty. versionOf
// returns an error if p is not a JSON object.
func versionOf(p []byte) (json.RawMessage, error) {
	var head struct {
		Version json.RawMessage `json:"version"`
	}
	err := json.Unmarshal(p, &head)
	return bytes.TrimSpace(head.Version), err
}

// encode returns the bytes of a record.
func encode(v any) ([]byte, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	return p, nil
}
