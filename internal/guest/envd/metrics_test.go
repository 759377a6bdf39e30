package envd

import (
	"encoding/json"
	"net/http"
	"testing"
)

func TestCPUTimes(t *testing.T) {
	busy, total, err := cpuTimes([]byte("cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1\n"))
	if err != nil || busy != 81 || total != 531 {
		t.Fatalf("busy %d, total %d, %v", busy, total, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"} {
		if _, _, err := cpuTimes([]byte(bad)); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestCPUPercentIsSinceTheLastCall(t *testing.T) {
	var c cpuMeter
	if got := c.percent(50, 100); got != 50 {
		t.Errorf("first call: %v", got)
	}
	if got := c.percent(75, 200); got != 25 {
		t.Errorf("second call: %v", got)
	}
	if got := c.percent(10, 20); got != 0 {
		t.Errorf("after a rollback: %v", got)
	}
}

func TestMetricsRoute(t *testing.T) {
	resp, err := http.Get(serve(t) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m metrics
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || m.MemTotal == 0 || m.MemUsed > m.MemTotal ||
		m.DiskTotal == 0 || m.CPUCount == 0 {
		t.Fatalf("%+v, %v", m, err)
	}
}
