package e2b_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// measured has the fields that E2B's SDKs require.
type measured struct {
	Timestamp *time.Time `json:"timestamp"`
	Unix      *int64     `json:"timestampUnix"`
	CPUs      *int       `json:"cpuCount"`
	CPUUsed   *float64   `json:"cpuUsedPct"`
	MemUsed   *uint64    `json:"memUsed"`
	MemTotal  *uint64    `json:"memTotal"`
	MemCache  *uint64    `json:"memCache"`
	DiskUsed  *uint64    `json:"diskUsed"`
	DiskTotal *uint64    `json:"diskTotal"`
}

func (m measured) isWhole() bool {
	return m.Timestamp != nil && m.Unix != nil && m.CPUs != nil && m.CPUUsed != nil && m.MemUsed != nil &&
		m.MemTotal != nil && m.MemCache != nil && m.DiskUsed != nil && m.DiskTotal != nil
}

// If the time range of a request includes now, the last measurement in the answer comes from the
// guest.
func TestMetricsOfATime(t *testing.T) {
	r := start(t)
	id := r.create(`{"templateID":"a.b"}`).ID
	at := "/sandboxes/" + id + "/metrics"
	r.History.Sample()
	time.Sleep(600 * time.Millisecond)
	r.History.Sample()
	points, err := r.Client.Metrics(t.Context(), id, client.MetricsRequest{})
	if err != nil || len(points.Points) != 1 {
		t.Fatalf("%+v, %v", points, err)
	}
	now := time.Now().Unix()
	for query, want := range map[string]int{
		"": 2, fmt.Sprint("?start=", now-60): 2, fmt.Sprintf("?start=%d&end=%d", now-60, now+3600): 2,
		fmt.Sprintf("?start=%d&end=%d", now-7200, now-3600): 0, fmt.Sprint("?start=", now+3600): 0,
		fmt.Sprintf("?start=%d&end=%d", now-60, now-30): 0, fmt.Sprintf("?start=%d", now+5): 1,
	} {
		var got []measured
		if r.call("GET", at+query, "", 200, &got); len(got) != want {
			t.Errorf("%s: %d measurements, want %d", query, len(got), want)
			continue
		}
		for i, m := range got {
			switch {
			case !m.isWhole():
				t.Errorf("%s: measurement %d lacks a field", query, i)
			case len(got) == 2 && i == 0 && (*m.MemUsed != 48<<20 || *m.MemTotal != 512<<20 || *m.CPUs < 1 ||
				*m.Unix < now-60):
				t.Errorf("%s: the past is %d of %d bytes at %d", query, *m.MemUsed, *m.MemTotal, *m.Unix)
			case i > 0 && m.Timestamp.Before(*got[i-1].Timestamp):
				t.Errorf("%s: measurement %d is older than the one before", query, i)
			}
		}
	}
	for _, wrong := range []string{"start=yesterday", "end=-1", "start=9999999999999"} {
		r.call("GET", at+"?"+wrong, "", 400, nil)
	}
	// A paused sandbox is not measured, but its past is known.
	r.call("POST", "/sandboxes/"+id+"/pause", "", 204, nil)
	var got []measured
	if r.call("GET", at, "", 200, &got); len(got) != 1 {
		t.Errorf("%d measurements of a paused sandbox, want 1", len(got))
	}
}
