package record

import (
	"encoding/json"
	"time"
)

// Once is the record of a request that is executed only once, even if clients send it several
// times.
type Once struct {
	At      time.Time `json:"at"`
	Request string    `json:"request"`          // digest of the request's body, in hexadecimal
	Answer  *Answer   `json:"answer,omitempty"` // nil: the request was started, but not answered
}

// Answer is the HTTP answer to the request.
type Answer struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// onceFile is the content of the record of a request.
type onceFile struct {
	Version int `json:"version"`
	Once
}

// EncodeOnce returns the bytes of the record of a request. It refuses a record that ParseOnce would
// refuse.
func EncodeOnce(o *Once) ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return encode(onceFile{Version, *o})
}

// ParseOnce decodes and checks the record of a request. Errors are *Error with the given path. The
// file at this path is not opened.
func ParseOnce(path string, p []byte) (*Once, error) {
	var now onceFile
	var old onceV0
	if err := parse(path, p, &now, &old, func() { now.Once = old.upgrade() }); err != nil {
		return nil, err
	}
	if err := now.check(); err != nil {
		return nil, err.in(path)
	}
	return &now.Once, nil
}

func (o *Once) check() *fault {
	switch {
	case o.At.IsZero():
		return wrong("at", "empty: %s", otherForkd)
	case o.Request == "":
		return wrong("request", "empty: %s", otherForkd)
	case o.Answer != nil && (o.Answer.Status < 200 || o.Answer.Status > 599):
		return wrong("answer.status", "%d: want the status of an HTTP answer; %s", o.Answer.Status, otherForkd)
	}
	return nil
}
