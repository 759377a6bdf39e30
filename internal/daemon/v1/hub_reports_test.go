package v1

import (
	"errors"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/hub"
)

// A client that reads slowly gets the latest progress of each file, and does not stop transfers.
func TestReportsDoNotWait(t *testing.T) {
	q := reports{wake: make(chan struct{}, 1)}
	ended, busy, read, sent := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var got []hub.Progress
	go func() {
		sent <- q.send(ended, func(p hub.Progress) error {
			if got = append(got, p); len(got) == 1 {
				close(busy)
				<-read
			}
			return nil
		})
	}()
	want := []hub.Progress{{File: "a", State: hub.Pushing, Done: 0}, {File: "a", State: hub.Pushing, Done: 999},
		{File: "b", State: hub.Exists}, {File: "a", State: hub.Pushed}}
	q.add(want[0])
	<-busy
	for done := range int64(1000) { // the client still reads the first report
		q.add(hub.Progress{File: "a", State: hub.Pushing, Done: done})
	}
	q.add(want[2])
	q.add(want[3])
	close(read)
	close(ended)
	if err := <-sent; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	q.add(want[0]) // after the end
}

// A client that has left gets no further reports.
func TestReportsEnd(t *testing.T) {
	q, left, calls := reports{wake: make(chan struct{}, 1)}, errors.New("left"), 0
	q.add(hub.Progress{File: "a"})
	q.add(hub.Progress{File: "b"})
	if err := q.send(nil, func(hub.Progress) error { calls++; return left }); !errors.Is(err, left) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
