// Package outlog is the format of a file with the output of a process: pieces of text, each with its
// stream and its time. A file is written and read as a whole. The package does not interpret the
// text, and does not read or write files.
package outlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// magic begins a file. It ends with the version of the format.
const magic = "forkd output 1\n"

// head is the length of an entry without its text, in bytes. It consists of the stream, the Unix
// time in nanoseconds, and the length of the text. Numbers are big-endian.
const head = 1 + 8 + 4

// Entry is a piece of output.
type Entry struct {
	Stream uint8 // 1: stdout, 2: stderr
	At     time.Time
	Text   []byte
}

// Encode returns the content of a file. The text of each entry must be shorter than 4 GiB.
func Encode(list []Entry) []byte {
	size := len(magic)
	for _, e := range list {
		size += head + len(e.Text)
	}
	out := append(make([]byte, 0, size), magic...)
	for _, e := range list {
		out = append(out, e.Stream)
		out = binary.BigEndian.AppendUint64(out, uint64(e.At.UnixNano()))
		out = binary.BigEndian.AppendUint32(out, uint32(len(e.Text)))
		out = append(out, e.Text...)
	}
	return out
}

// Errors of Decode. A power failure may leave an empty or truncated file.
var (
	errVersion = errors.New("not an output file of this version")
	errShort   = errors.New("the file ends within an entry")
)

// Decode returns the entries of the file with the content p. The texts of the entries are slices of
// p.
func Decode(p []byte) (list []Entry, err error) {
	p, ok := bytes.CutPrefix(p, []byte(magic))
	if !ok {
		return nil, errVersion
	}
	for len(p) > 0 {
		if len(p) < head {
			return nil, errShort
		}
		e := Entry{Stream: p[0], At: time.Unix(0, int64(binary.BigEndian.Uint64(p[1:])))}
		size := uint64(binary.BigEndian.Uint32(p[9:]))
		p = p[head:]
		if e.Stream != 1 && e.Stream != 2 {
			return nil, fmt.Errorf("an entry has the stream %d: want 1 or 2", e.Stream)
		}
		if size > uint64(len(p)) {
			return nil, errShort
		}
		e.Text, p = p[:size:size], p[size:]
		list = append(list, e)
	}
	return list, nil
}
