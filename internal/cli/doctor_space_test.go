package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// An emulated host whose disk is full fails the check, however much room this host has.
func TestDoctorLooksAtTheMachinesDisk(t *testing.T) {
	state, ram := tcghost.DaemonDirs()
	for _, c := range []struct {
		name      string
		free      machineapi.Space
		err       error
		hot, disk verdict
	}{
		{"room", machineapi.Space{state: 6 << 30, ram: 2 << 30}, nil, pass, pass},
		{"full disk", machineapi.Space{state: 20 << 20, ram: 2 << 30}, nil, pass, fail},
		{"little memory", machineapi.Space{state: 6 << 30, ram: 300 << 20}, nil, warn, pass},
		{"no answer", nil, errors.New("no route"), warn, warn},
	} {
		got := machineSpace("m", c.free, c.err)
		if len(got) != 2 || got[0].Verdict != c.hot || got[1].Verdict != c.disk ||
			!strings.Contains(got[1].Detail, "emulated host m") {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
