package cli

import (
	"errors"
	"strings"
	"testing"
)

func TestDoctorKnowsWhatKeepsGuestsIn(t *testing.T) {
	refused := errors.New("operation not permitted")
	for _, c := range []struct {
		name    string
		got     finding
		verdict verdict
		detail  string // part of it
	}{
		{"root", checkJail(nil, true), pass, "a user of its own"},
		{"a user", checkJail(nil, false), pass, "your user"},
		{"root in a container", checkJail(refused, true), warn, "--no-namespaces"},
		{"a user without namespaces", checkJail(refused, false), warn, "unprivileged_userns"},
		{"no landlock", checkLandlock(0), warn, "lsm="},
		{"landlock", checkLandlock(3), pass, ""},
		{"no SMT", checkCores("0", false), pass, ""},
		{"no cores known", checkCores("", false), pass, ""},
		{"core scheduling", checkCores("1", true), pass, "core scheduling"},
		{"shared cores", checkCores("1", false), warn, "nosmt"},
		{"ksm", checkKSM("1"), warn, "ksm/run"},
		{"no ksm", checkKSM("0"), pass, "off"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(c.got.Detail, c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}
