// Package record is the format of the records that the daemon keeps of its own work: a sandbox, the
// suspended state of one, the secrets of its network, a workspace, the file of a base image, and the
// answer to a request that is carried out once.
//
// A record is one JSON object. Its version is the version of all kinds. A reader accepts the
// present version, and version 0, which is what forkd wrote before records had a version. It
// refuses all other versions, every field that it does not know, and every record that lacks a
// field without which it would mean more than it did: a record without a network policy says
// nothing about where its sandbox may connect to, and is never read as "everywhere".
//
// The structs here are of this package alone: no message of a protocol and no type of an API can
// change what lies on disk. A changed struct raises Version; the struct of the version before then
// gets a file of its own, as v0.go is, and a golden file in testdata. The package encodes, decodes
// and checks. Where records live, when they are flushed and what their values mean is decided by
// the packages that write them.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Version is the version that records are written in.
const Version = 1

// Error reports what is wrong with a record, and how to put it right.
type Error struct {
	Path   string // the file
	Field  string // such as "network.mode" or "frozen[1].name"; empty if no field is to blame
	Reason string

	Torn bool // the file is no JSON: it was truncated, or something else has written it
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Path + ": " + e.Reason
	}
	return e.Path + ": " + e.Field + ": " + e.Reason
}

// fault is an Error in a record of which the file is not known.
type fault struct{ field, reason string }

func (f *fault) Error() string { return "encode a record: " + f.field + ": " + f.reason }

func (f *fault) in(path string) *Error { return &Error{Path: path, Field: f.field, Reason: f.reason} }

func wrong(field, format string, args ...any) *fault {
	return &fault{field, fmt.Sprintf(format, args...)}
}

// otherForkd is the fix of everything that this version does not know.
const otherForkd = "use the forkd that wrote it"

// parse decodes a record of any version: now receives a record of this one, and old one of version
// 0, which upgrade then turns into the present form.
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

// versionOf returns the text of a record's version, which is empty for version 0. Its error says
// that p is no JSON object.
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
