package e2b_test

import (
	"fmt"
	"testing"
	"time"
)

// Only a time range that includes now gets a measurement, because past measurements are not stored.
func TestMetricsOfATime(t *testing.T) {
	r := start(t)
	at := "/sandboxes/" + r.create(`{"templateID":"a.b"}`).ID + "/metrics"
	now := time.Now().Unix()
	for query, want := range map[string]int{
		"": 1, fmt.Sprint("?start=", now-60): 1, fmt.Sprintf("?start=%d&end=%d", now-60, now+3600): 1,
		fmt.Sprintf("?start=%d&end=%d", now-7200, now-3600): 0, fmt.Sprint("?start=", now+3600): 0,
	} {
		var got []any
		if r.call("GET", at+query, "", 200, &got); len(got) != want {
			t.Errorf("%s: %d measurements, want %d", query, len(got), want)
		}
	}
	r.call("GET", at+"?start=yesterday", "", 400, nil)
}
