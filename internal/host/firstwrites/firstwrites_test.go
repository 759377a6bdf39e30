package firstwrites

import (
	"errors"
	"reflect"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Pages returns only pages that all answering children have written.
func TestFirstWritesAreThoseOfAllLearners(t *testing.T) {
	l := &Set{}
	for i, writes := range [][]vm.Range{
		{{GPA: 0, Length: 8}, {GPA: 16, Length: 4}, {GPA: 24, Length: 8}},
		{{GPA: 4, Length: 18}, {GPA: 28, Length: 8}},
		{{GPA: 2, Length: 30}},
		{},
	} {
		if got := l.Pages(); (got != nil) != (i == learners) {
			t.Errorf("after %d answers: %v", i, got)
		}
		l.Learn(func() ([]vm.Range, error) { return writes, nil })
	}
	want := []vm.Range{{GPA: 4, Length: 4}, {GPA: 16, Length: 4}, {GPA: 28, Length: 4}}
	if got := l.Pages(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// If a child does not answer, for example because its fork was cancelled, another child is asked.
func TestFirstWritesOfThoseWhoAnswer(t *testing.T) {
	for failing, want := range map[int]struct {
		asked int
		found bool
	}{0: {learners, true}, 2: {learners + 2, true}, maxAsked: {maxAsked, false}} {
		l := &Set{}
		asked := 0
		for range 2 * maxAsked {
			l.Learn(func() ([]vm.Range, error) {
				if asked++; asked <= failing {
					return nil, errors.New("called off")
				}
				return []vm.Range{{Length: 4096}}, nil
			})
		}
		if got := l.Pages(); (got != nil) != want.found || asked != want.asked {
			t.Errorf("%d that do not answer: %v after asking %d", failing, got, asked)
		}
	}
}

// When the number of children that have answered, or may still answer, has reached the constant
// learners, Learn asks no further child.
func TestFirstWritesAreAskedOfFewAtOnce(t *testing.T) {
	l := &Set{}
	asked := 0
	var ask func(more int)
	ask = func(more int) {
		l.Learn(func() ([]vm.Range, error) {
			asked++
			if more > 0 {
				ask(more - 1)
			}
			return []vm.Range{{Length: 4096}}, nil
		})
	}
	ask(2 * learners)
	if got := l.Pages(); got == nil || asked != learners {
		t.Errorf("%v after asking %d", got, asked)
	}
}
