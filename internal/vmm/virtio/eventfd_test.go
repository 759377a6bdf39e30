package virtio

import (
	"errors"
	"os"
	"testing"
)

func TestEventFDWakesItsWaiter(t *testing.T) {
	e, err := NewEventFD()
	if err != nil {
		t.Fatal(err)
	}
	woken := make(chan error)
	go func() {
		woken <- e.Wait()
		woken <- e.Wait()
	}()
	if err := e.Signal(); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Wait after Close = %v", err)
	}
	if e.Close() == nil {
		t.Fatal("second Close succeeded")
	}
}

func TestEventFDCountsSignalsBeforeWait(t *testing.T) {
	e, err := NewEventFD()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 3 {
		if err := e.Signal(); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Wait(); err != nil {
		t.Fatal(err)
	}
}
