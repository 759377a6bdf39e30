package record

import "time"

// Phases of a move. On the host that a sandbox leaves, the order of the phases is MoveLeaving,
// MoveLeft, MoveGone. The host that it moves to has MoveArriving, and then no record.
const (
	MoveLeaving  = "leaving"  // the host has the sandbox, and does not run it
	MoveLeft     = "left"     // the other host may run the sandbox; this host still has its files
	MoveGone     = "gone"     // the other host has the sandbox
	MoveArriving = "arriving" // the host has the sandbox's files, and may not run it yet
)

// Move is the record of a sandbox that is moving from one host to another, or has moved away.
type Move struct {
	ID    string    `json:"id"`
	Phase string    `json:"phase"`
	Node  string    `json:"node"` // name of the other host: the destination or, in MoveArriving, the origin
	Since time.Time `json:"since"`
	// Key lets the other host run the sandbox. Only the host that the sandbox leaves has it.
	Key string `json:"key,omitempty"`
	// Lock is the digest of the key, in hexadecimal. Only the host that the sandbox moves to has it.
	Lock string `json:"lock,omitempty"`
	// Was is set while a sandbox that has moved away returns to this host. It names the host to
	// which the sandbox had moved from here.
	Was string `json:"was,omitempty"`
}

// moveFile is the content of the record.
type moveFile struct {
	Version int `json:"version"`
	Move
}

// EncodeMove returns the bytes of the record of a move. It refuses a record that ParseMove would
// refuse.
func EncodeMove(m *Move) ([]byte, error) {
	if f := m.check(); f != nil {
		return nil, f
	}
	return encode(moveFile{Version, *m})
}

// ParseMove decodes and checks the record of a move. Errors are *Error with the given path. The file
// at this path is not opened.
func ParseMove(path string, p []byte) (*Move, error) {
	var now moveFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Move, nil
}

func (m *Move) check() *fault {
	key, lock := true, false
	switch m.Phase {
	case MoveLeaving, MoveLeft, MoveGone:
	case MoveArriving:
		key, lock = false, true
	default:
		return wrong("phase", "%.20q: want leaving, left, gone or arriving; %s", m.Phase, otherForkd)
	}
	switch {
	case m.ID == "":
		return wrong("id", "empty: %s", otherForkd)
	case m.Node == "":
		return wrong("node", "empty: %s", otherForkd)
	case m.Since.IsZero():
		return wrong("since", "empty: %s", otherForkd)
	case (m.Key != "") != key:
		return wrong("key", "want one, but only while the sandbox leaves or has left; %s", otherForkd)
	case (m.Lock != "") != lock:
		return wrong("lock", "want one, but only while the sandbox arrives; %s", otherForkd)
	}
	return nil
}
