package v1

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// An event is encoded once for each principal, however many streams send the event.
func TestTextsOfEventsAreShared(t *testing.T) {
	var texts eventTexts
	var mu sync.Mutex
	encoded := map[textKey]int{}
	get := func(key textKey, text string, failure error) string {
		got, err := texts.get(key, func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			encoded[key]++
			return text, failure
		})
		if !errors.Is(err, failure) {
			t.Errorf("%v: %v, want %v", key, err, failure)
		}
		return got
	}
	plain, records := textKey{id: "1"}, textKey{id: "1", records: true}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got := get(plain, "plain", nil) + get(records, "with records", nil); got != "plainwith records" {
				t.Errorf("the texts are %q", got)
			}
		})
	}
	all.Wait()
	if encoded[plain] != 1 || encoded[records] != 1 {
		t.Errorf("encoded %v, want each text once", encoded)
	}
	// Long texts and errors are not kept.
	long := textKey{id: "long"}
	for n := range 3 {
		if got := get(long, strings.Repeat("x", maxShared+1), nil); len(got) != maxShared+1 || encoded[long] != n+1 {
			t.Errorf("a long text has %d bytes, encoded %d times", len(got), encoded[long])
		}
		get(textKey{id: "failed"}, "", errNone)
	}
	if n := encoded[textKey{id: "failed"}]; n != 3 {
		t.Errorf("after an error, encoded %d times, want 3", n)
	}
	for n := range 3 * maxTexts {
		get(textKey{id: fmt.Sprint("many ", n)}, "x", nil)
	}
	if n := len(texts.texts); n > maxTexts {
		t.Errorf("%d texts are kept, at most %d", n, maxTexts)
	}
	if get(plain, "again", nil); encoded[plain] != 2 {
		t.Error("the oldest text is still kept")
	}
}

var errNone = errors.New("no text")
