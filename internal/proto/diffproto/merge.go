package diffproto

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The archive of a merge has one entry for each change, in the order of a walk. Extended headers
// contain the following three records, which tar programs ignore. With the records, the agent of
// the receiving side can apply the archive as a transaction.
const (
	// RecordOnto is the state of the file that the change replaces, in the form of State.String.
	RecordOnto = "FORKD.onto"
	// RecordDelete marks an entry for a deletion. The entry has the name of the deleted file.
	RecordDelete = "FORKD.delete"
	// RecordEnd, in a global header at the end, is the number of changes. An archive without this
	// record is cut off.
	RecordEnd = "FORKD.end"
)

// MaxMerged bounds the number of changes of one merge. MaxMergedPaths bounds the total length of
// their paths, in bytes. The agent holds all changes in memory.
const (
	MaxMerged      = 100_000
	MaxMergedPaths = 16 << 20
)

// State identifies the state of a file on the receiving side. If the file is written, replaced or
// removed, its state changes. The zero State means that there is no file.
type State struct {
	Inode        uint64
	Mode         uint32 // st_mode of Linux: type and permissions
	UID, GID     uint32
	Size         int64 // bytes
	MTime, CTime int64 // ns since 1970
}

// String returns the form of a State in an archive.
func (s State) String() string {
	if s == (State{}) {
		return "absent"
	}
	return fmt.Sprintf("%d %d %d %d %d %d %d", s.Inode, s.Mode, s.UID, s.GID, s.Size, s.MTime, s.CTime)
}

// ParseState parses the result of String.
func ParseState(text string) (s State, err error) {
	if text == "absent" {
		return s, nil
	}
	fields := strings.Split(text, " ")
	if len(fields) != 7 {
		return s, fmt.Errorf("state %.100q: want seven numbers", text)
	}
	unsigned := func(field, most uint64) (n uint64) {
		if err == nil {
			if n, err = strconv.ParseUint(fields[field], 10, 64); err == nil && n > most {
				err = strconv.ErrRange
			}
		}
		return n
	}
	signed := func(field int) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(fields[field], 10, 64)
		}
		return n
	}
	s = State{Inode: unsigned(0, math.MaxUint64), Mode: uint32(unsigned(1, math.MaxUint32)),
		UID: uint32(unsigned(2, math.MaxUint32)), GID: uint32(unsigned(3, math.MaxUint32)), Size: signed(4),
		MTime: signed(5), CTime: signed(6)}
	if err == nil && s == (State{}) {
		err = strconv.ErrRange
	}
	if err != nil {
		return State{}, fmt.Errorf("state %.100q: %w", text, err)
	}
	return s, nil
}
