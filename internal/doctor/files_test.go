package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// If the disk of the emulated host is full, the check fails, whatever space this host has.
func TestDoctorLooksAtTheMachinesDisk(t *testing.T) {
	state, ram := tcghost.DaemonDirs()
	for _, c := range []struct {
		name      string
		free      machineapi.Space
		err       error
		hot, disk Verdict
	}{
		{"room", machineapi.Space{state: 6 << 30, ram: 2 << 30}, nil, Pass, Pass},
		{"full disk", machineapi.Space{state: 20 << 20, ram: 2 << 30}, nil, Pass, Fail},
		{"little memory", machineapi.Space{state: 6 << 30, ram: 300 << 20}, nil, Warn, Pass},
		{"no answer", nil, errors.New("no route"), Warn, Warn},
	} {
		got := judgeMachine("m", c.free, c.err)
		if len(got) != 2 || got[ram].Verdict != c.hot || got[state].Verdict != c.disk ||
			!strings.Contains(got[state].Detail, "emulated host m") {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
