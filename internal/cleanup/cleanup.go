// Package cleanup helps functions that create something in several steps to undo these steps after
// an error.
//
// It calls the undo functions in reverse order. Undo functions return no errors, because the caller
// already reports the error that made it undo its steps.
package cleanup

// Stack holds functions that undo the steps done so far. The zero Stack is ready for use. It may be
// used by only one goroutine at a time.
//
//	var undo cleanup.Stack
//	defer undo.Run()
//	... undo.Add(func() { os.RemoveAll(dir) }) ...
//	undo.Release() // all steps succeeded: keep the result
type Stack struct{ steps []func() }

// Add puts f on top of the stack.
func (s *Stack) Add(f func()) { s.steps = append(s.steps, f) }

// Run calls the functions, the latest function first, and empties the stack.
func (s *Stack) Run() {
	steps := s.steps
	s.steps = nil
	for i := len(steps) - 1; i >= 0; i-- {
		steps[i]()
	}
}

// Release empties the stack without calling the functions.
func (s *Stack) Release() { s.steps = nil }

// Call calls the functions that are not nil, in their order.
func Call(list ...func()) {
	for _, f := range list {
		if f != nil {
			f()
		}
	}
}
