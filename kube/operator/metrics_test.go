package operator

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// foreign matches the metrics in dashboards and alerts that are not forkd's own.
var foreign = regexp.MustCompile(`\b(?:controller_runtime|leader_election|rest_client|workqueue)_[a-z_]+`)

// The operator has the metrics that the dashboard and the alerts of the cluster use.
// internal/daemon/metrics tests all other metrics.
func TestMetrics(t *testing.T) {
	w := newWorld(t, "metrics", "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	metrics := l.Addr().String()
	w.elect, w.change = true, func(c *Config) { c.MetricsBind = metrics }
	l.Close()
	w.start()
	want := map[string]bool{}
	for _, name := range []string{"cluster-dashboard.json", "cluster-alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../packaging/grafana", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range foreign.FindAllString(string(text), -1) {
			want[metric] = true
		}
	}
	if len(want) < 6 {
		t.Fatalf("found only %v", want)
	}
	w.until("metrics", func() string {
		answer, err := http.Get("http://" + metrics + "/metrics")
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			return answer.Status
		}
		missing := ""
		for metric := range want {
			if !strings.Contains(string(text), "\n"+metric+"{") {
				missing += " " + metric
			}
		}
		if !strings.Contains(string(text), `leader_election_master_status{name="forkd-operator"} 1`) {
			missing += " the lease"
		}
		return missing
	})
}
