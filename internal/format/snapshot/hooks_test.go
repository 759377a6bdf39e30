package snapshot

import "testing"

// A hook in a stored manifest must have all fields. A hook that lacks a field is refused.
func TestHooksOfAManifest(t *testing.T) {
	whole := Hook{Args: []string{"sync"}, TimeoutSecs: 1, OnFailure: HookContinues}
	for name, change := range map[string]func(*Hook){
		"no command":    func(h *Hook) { h.Args = nil },
		"no time limit": func(h *Hook) { h.TimeoutSecs = 0 },
		"no policy":     func(h *Hook) { h.OnFailure = "" },
		"other policy":  func(h *Hook) { h.OnFailure = "retry" },
	} {
		h := whole
		change(&h)
		for _, hooks := range []Hooks{{BeforeBranch: &h}, {AfterFork: &h}, {BeforeSuspend: &h}, {AfterResume: &h}} {
			if hooks.Check() == nil {
				t.Errorf("%s: %+v is accepted", name, hooks)
			}
		}
	}
	if err := (Hooks{AfterResume: &whole}).Check(); err != nil {
		t.Error(err)
	}
	if err := (Hooks{}).Check(); err != nil {
		t.Error(err)
	}
}
