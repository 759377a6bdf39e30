// Package cleanup is an undo stack for functions that build something in several steps.
//
// It runs functions in reverse order of their addition. It collects no errors: a function that
// fails after its first error reports that error.
package cleanup

// Stack holds the functions that undo what was done so far. The zero Stack is ready to use. It is
// not safe for use by several goroutines at once.
//
//	var undo cleanup.Stack
//	defer undo.Run()
//	... undo.Add(func() { os.RemoveAll(dir) }) ...
//	undo.Release() // it all worked: keep it
type Stack struct{ steps []func() }

// Add puts f on top of the stack.
func (s *Stack) Add(f func()) { s.steps = append(s.steps, f) }

// Run calls the functions, the last one added first, and empties the stack.
func (s *Stack) Run() {
	steps := s.steps
	s.steps = nil
	for i := len(steps) - 1; i >= 0; i-- {
		steps[i]()
	}
}

// Release empties the stack without calling anything.
func (s *Stack) Release() { s.steps = nil }
