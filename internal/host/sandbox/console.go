package sandbox

import (
	"os"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/conlog"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Console returns the last output of a sandbox's serial console, even if the sandbox has exited.
func (m *Manager) Console(id string) (console.Text, error) {
	s, err := m.Get(id)
	if err != nil {
		return console.Text{}, err
	}
	state, v, last := s.screen()
	if state == Exited || v == nil {
		return last, nil
	}
	return vmpool.Console(m.cfg.VMMs, v.dir)
}

// screen returns the VM that writes the console of s, if it has one, or the last output of an
// exited s.
func (s *Sandbox) screen() (State, *liveVM, console.Text) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.live, s.console
}

// Follow returns a log of a sandbox, at its beginning, which the caller closes.
func (m *Manager) Follow(id string) (*conlog.Log, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	return conlog.New(func() conlog.Screen {
		state, v, last := s.screen()
		screen := conlog.Screen{Ended: state == Exited || state == Stopping, Last: last}
		if v != nil {
			screen.VM, screen.Open = v, func() (*os.File, error) { return m.cfg.VMMs.OpenConsole(v.dir) }
		}
		return screen
	}), nil
}
