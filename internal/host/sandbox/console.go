package sandbox

import (
	"os"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/conlog"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Console returns the last output on a sandbox's serial console. It also works for exited
// sandboxes.
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

// screen returns the state of s, its VM if it has one, and its last output if it has exited.
func (s *Sandbox) screen() (State, *liveVM, console.Text) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.live, s.console
}

// Follow returns a log that follows a sandbox's console from its oldest output. The caller must
// close it.
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
