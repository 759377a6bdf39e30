package apirig

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// Lifetime implements T outside of tests; see During.
type Lifetime struct {
	program string // for messages

	mu     sync.Mutex
	undo   []func()
	errors []error
}

// fatal is the value with which the methods Fatal and Fatalf panic.
type fatal struct{ error }

// During(program, f) calls f for a program that is not a test. It then removes what the rigs of f
// have made. It returns the errors of f and of the removal.
func During(program string, f func(t *Lifetime) error) (err error) {
	t := &Lifetime{program: program}
	defer func() {
		switch stopped := recover().(type) {
		case nil:
		case fatal:
			err = stopped
		default:
			panic(stopped)
		}
		err = errors.Join(err, t.end())
	}()
	return f(t)
}

// Helper implements T.
func (t *Lifetime) Helper() {}

// TempDir implements T.
func (t *Lifetime) TempDir() string {
	dir, err := os.MkdirTemp("", "forkd-rig")
	if err != nil {
		t.Fatal(err)
	}
	// An error is ignored, because some users cannot remove the files of a guest.
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Cleanup implements T.
func (t *Lifetime) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.undo = append(t.undo, f)
}

// Errorf implements T.
func (t *Lifetime) Errorf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	fmt.Fprintf(os.Stderr, "%s: %v\n", t.program, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors = append(t.errors, err)
}

// Fatalf implements T.
func (t *Lifetime) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

// Fatal implements T.
func (t *Lifetime) Fatal(args ...any) { panic(fatal{errors.New(fmt.Sprint(args...))}) }

// end calls the functions that were passed to Cleanup, and returns their errors.
func (t *Lifetime) end() error {
	t.mu.Lock()
	undo := t.undo
	t.mu.Unlock()
	for _, f := range slices.Backward(undo) {
		f()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errors...)
}
