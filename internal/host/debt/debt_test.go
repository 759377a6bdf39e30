package debt

import (
	"slices"
	"testing"
)

// A guest receives the latest message of each kind, once and in order.
func TestDebtsArePaidOnce(t *testing.T) {
	var d Debts
	var told []string
	owe := func(kind Kind, what string) { d.Owe(kind, func() { told = append(told, what) }) }
	owe(Trust, "trust")
	owe(Reset, "an earlier reset")
	owe(Reset, "reset")
	if n := d.Count(); n != 2 {
		t.Errorf("%d kinds are owed, want 2", n)
	}
	d.Pay()
	d.Pay()
	if want := []string{"reset", "trust"}; !slices.Equal(told, want) || d.Count() != 0 {
		t.Errorf("told %q, want %q; %d kinds are still owed", told, want, d.Count())
	}
}
