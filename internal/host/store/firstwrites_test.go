package store

import (
	"errors"
	"reflect"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// What one child alone has written is not copied for all others.
func TestFirstWritesAreThoseOfAllLearners(t *testing.T) {
	l := &Lease{hotFiles: &hotFiles{}}
	for i, writes := range [][]vm.Range{
		{{GPA: 0, Length: 8}, {GPA: 16, Length: 4}, {GPA: 24, Length: 8}},
		{{GPA: 4, Length: 18}, {GPA: 28, Length: 8}},
		{{GPA: 2, Length: 30}},
		{},
	} {
		if got := l.FirstWrites(); (got != nil) != (i == learners) {
			t.Errorf("after %d answers: %v", i, got)
		}
		l.LearnFirstWrites(func() ([]vm.Range, error) { return writes, nil })
	}
	want := []vm.Range{{GPA: 4, Length: 4}, {GPA: 16, Length: 4}, {GPA: 28, Length: 4}}
	if got := l.FirstWrites(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFirstWritesStayUnknownWithoutAnAnswer(t *testing.T) {
	l := &Lease{hotFiles: &hotFiles{}}
	asked := 0
	for range 2 * learners {
		l.LearnFirstWrites(func() ([]vm.Range, error) {
			if asked++; asked == 2 {
				return nil, errors.New("no page map")
			}
			return []vm.Range{{Length: 4096}}, nil
		})
	}
	if got := l.FirstWrites(); got != nil || asked != learners {
		t.Errorf("%v after asking %d times", got, asked)
	}
}
