package agentproto

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestAnswersRoundTrip(t *testing.T) {
	want := Unique{More: 3, Reseeded: []Generator{{1, "node", "libcrypto.so.3"}},
		Repeats: []Generator{{2, "python3", "random"}, {3, "", ""}}}
	p := AppendUnique(nil, want)
	got, text, err := ParseAnswer(p[LengthSize:])
	if err != nil || text != "" || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %q, %v", got, text, err)
	}
	for n := LengthSize + 1; n < len(p); n++ {
		if got, text, err := ParseAnswer(p[LengthSize:n]); n > LengthSize && err == nil {
			t.Errorf("%d of %d bytes: %+v, %q", n, len(p), got, text)
		}
	}
	if got, text, err := ParseAnswer(nil); got != nil || text != "" || err != nil {
		t.Errorf("the answer of an agent that does not look: %+v, %q, %v", got, text, err)
	}
	p = AppendAnswer(nil, errors.New("no licence"))
	if got, text, err := ParseAnswer(p[LengthSize:]); got != nil || text != "no licence" || err != nil {
		t.Errorf("an error: %+v, %q, %v", got, text, err)
	}
}

// Both sides shorten a report, because the host must not trust the guest.
func TestReportsAreCut(t *testing.T) {
	long := Generator{1, strings.Repeat("x", 1000), "a\x1b]52;c;b\nc\xff"}
	u := Unique{}
	for range 40 {
		u.Reseeded, u.Repeats = append(u.Reseeded, long), append(u.Repeats, long)
	}
	got, _, err := ParseAnswer(AppendUnique(nil, u)[LengthSize:])
	if err != nil || len(got.Repeats) != 40 || len(got.Reseeded) != MaxGenerators-40 || got.More != 16 {
		t.Fatalf("%d repeat, %d are reseeded, %d more, %v", len(got.Repeats), len(got.Reseeded), got.More, err)
	}
	if g := got.Repeats[0]; len(g.Program) != MaxGeneratorName || g.Library != "a?]52;c;b?c?" {
		t.Errorf("names %+q", []string{g.Program, g.Library})
	}
	var many []byte
	many = append(many, reported, 0, 0, 0, 0)
	many = appendGenerators(many, make([]Generator, MaxGenerators))
	many = appendGenerators(many, make([]Generator, 1))
	if _, _, err := ParseAnswer(many); err == nil {
		t.Error("an answer with more generators than there may be")
	}
}

func TestAReportOfNothingAllocatesNothing(t *testing.T) {
	var room [32]byte
	if n := testing.AllocsPerRun(100, func() { AppendUnique(room[:0], Unique{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
