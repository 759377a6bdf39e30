package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A saved machine state is
//
//	magic "FKDSTATE" | format version u32 | sections | CRC-32 (IEEE) u32 of everything before
//
// A section is a name (string) and contents (blob). The component to which the section belongs
// defines the contents and their version. The first section lists the devices. The names and the
// order of the other sections follow from that list. The checksum is not CRC-32C, because Go
// computes megabytes of tables for CRC-32C. Computing the tables would take 0.15 ms in every VMM.
const (
	stateMagic   = "FKDSTATE"
	stateVersion = 4
)

// stateWriter collects sections.
type stateWriter struct{ w codec.Writer }

func newStateWriter() *stateWriter {
	s := &stateWriter{}
	s.w.Raw([]byte(stateMagic))
	s.w.U32(stateVersion)
	return s
}

func (s *stateWriter) section(name string, save func(w *codec.Writer)) {
	var w codec.Writer
	save(&w)
	s.w.String(name)
	s.w.Blob(w.Bytes())
}

func (s *stateWriter) finish() []byte {
	s.w.U32(crc32.ChecksumIEEE(s.w.Bytes()))
	return s.w.Bytes()
}

// stateReader reads sections, which must be read in the order in which they were written.
type stateReader struct{ r *codec.Reader }

func newStateReader(p []byte) (*stateReader, error) {
	r, err := checkState(p)
	if err != nil {
		return nil, vm.WithCode(vm.ErrBadState, err)
	}
	return &stateReader{r}, nil
}

// checkState checks the magic, the version and the checksum of a saved state. It returns a reader
// of the sections.
func checkState(p []byte) (*codec.Reader, error) {
	if len(p) < len(stateMagic)+8 || string(p[:len(stateMagic)]) != stateMagic {
		return nil, errors.New("not a forkd machine state")
	}
	body, sum := p[:len(p)-4], binary.LittleEndian.Uint32(p[len(p)-4:])
	r := codec.NewReader(body[len(stateMagic):])
	if v := r.U32(); v != stateVersion {
		return nil, fmt.Errorf("machine state has format version %d, this forkd reads %d: use the forkd that made "+
			"the snapshot, or bake it again", v, stateVersion)
	}
	if crc32.ChecksumIEEE(body) != sum {
		return nil, errors.New("machine state is damaged: its checksum does not match")
	}
	return r, nil
}

// section reads the next section, which must have the given name, and calls restore with its
// contents. If restore returns an error without a code, the code becomes vm.ErrBadState.
func (s *stateReader) section(name string, restore func(r *codec.Reader) error) error {
	return vm.WithCode(vm.ErrBadState, s.take(name, restore))
}

func (s *stateReader) take(name string, restore func(r *codec.Reader) error) error {
	got := s.r.String()
	contents := s.r.Blob()
	if err := s.r.Err(); err != nil {
		return fmt.Errorf("machine state section %s: %w", name, err)
	}
	if got != name {
		return fmt.Errorf("machine state has section %q where %q belongs", got, name)
	}
	r := codec.NewReader(contents)
	if err := errors.Join(restore(r), r.Done()); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	return nil
}
