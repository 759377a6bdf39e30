package agentproto

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Unique lists the random number generators that the agent has found in the memory of the guest's
// processes after a fork. A nil *Unique means that the agent is too old to look for them.
type Unique struct {
	Reseeded []Generator // from now on, their numbers differ from those of the sibling guests
	Repeats  []Generator // if they were used before the snapshot, sibling guests get the same numbers from them
	More     uint32      // number of generators that do not fit into the lists
}

// Generator is a random number generator of one process. Program and Library come from the guest,
// so they are not trusted.
type Generator struct {
	PID     uint32
	Program string
	Library string
}

// Bounds of a Unique. Generators beyond the bounds are dropped.
const (
	MaxGenerators    = 64  // maximum number of generators in both lists together
	MaxGeneratorName = 256 // maximum length of a name, in bytes of printable ASCII
)

// cut returns u, shortened to the bounds. It drops generators of Reseeded first, and then
// generators of Repeats.
func (u Unique) cut() Unique {
	repeats := u.Repeats[:min(len(u.Repeats), MaxGenerators)]
	reseeded := u.Reseeded[:min(len(u.Reseeded), MaxGenerators-len(repeats))]
	u.More += uint32(len(u.Repeats) - len(repeats) + len(u.Reseeded) - len(reseeded))
	u.Repeats, u.Reseeded = repeats, reseeded
	return u
}

// reported is the first byte of an answer that contains a Unique. The text of an error never begins
// with this byte.
const reported = 0

// AppendUnique appends the answer of an agent that has carried out a message and has looked for
// generators. The answer contains More and the two lists. Each list consists of the number of its
// generators, and the process id and the two names of each generator.
func AppendUnique(b []byte, u Unique) []byte {
	u = u.cut()
	head := len(b)
	b = append(b, make([]byte, LengthSize)...)
	b = append(b, reported)
	b = binary.LittleEndian.AppendUint32(b, u.More)
	b = appendGenerators(b, u.Reseeded)
	b = appendGenerators(b, u.Repeats)
	binary.LittleEndian.PutUint32(b[head:], uint32(len(b)-head-LengthSize))
	return b
}

func appendGenerators(b []byte, list []Generator) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, g := range list {
		b = binary.LittleEndian.AppendUint32(b, g.PID)
		for _, name := range []string{g.Program, g.Library} {
			name = name[:min(len(name), MaxGeneratorName)]
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(name))), name...)
		}
	}
	return b
}

// ParseAnswer parses an answer that AppendAnswer or AppendUnique has made. The parameter body has
// the answer without its length. The agent's error is in text, which is "" if there is none. If the
// answer is malformed, err is set.
func ParseAnswer(body []byte) (u *Unique, text string, err error) {
	if len(body) == 0 || body[0] != reported {
		return nil, string(body), nil
	}
	r := codec.NewReader(body[1:])
	got := Unique{More: r.U32()}
	for _, list := range []*[]Generator{&got.Reseeded, &got.Repeats} {
		for range r.Count(3 * LengthSize) {
			*list = append(*list, Generator{r.U32(), printable(r.Blob()), printable(r.Blob())})
		}
	}
	if err := r.Done(); err != nil {
		return nil, "", fmt.Errorf("answer to a fork message: %w", err)
	}
	if len(got.Reseeded)+len(got.Repeats) > MaxGenerators {
		return nil, "", errors.New("answer to a fork message: too many generators")
	}
	return &got, "", nil
}

// printable returns a name, shortened to the bounds. Characters that are not printable ASCII are
// replaced.
func printable(p []byte) string {
	name := append([]byte(nil), p[:min(len(p), MaxGeneratorName)]...)
	for i, c := range name {
		if c < ' ' || c > '~' {
			name[i] = '?'
		}
	}
	return string(name)
}
