package tracing

import (
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// collected receives spans like a collector.
type collected struct {
	mu    sync.Mutex
	spans map[string]*tracepb.Span // the last span of each name
	count int
	about string // attributes of the resource
}

func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	p, err := io.ReadAll(body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(p, &req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		c.about = rs.Resource.String()
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans[s.Name] = s
				c.count++
			}
		}
	}
}

// The spans of a fork and a branch reach a collector. They are parts of the client's trace, and
// have the measured times.
func TestSpansReachACollector(t *testing.T) {
	got := &collected{spans: map[string]*tracepb.Span{}}
	server := httptest.NewServer(got)
	defer server.Close()
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_RESOURCE_ATTRIBUTES": "host.name=here"}
	for k, v := range env {
		t.Setenv(k, v)
	}
	tracer, err := FromEnv(t.Context(), "1.2.3", func(k string) string { return env[k] })
	if err != nil || tracer == nil {
		t.Fatalf("%v, %v", tracer, err)
	}
	r := httptest.NewRequest("POST", "/v1/forks", nil)
	const parent = "0af7651916cd43dd8448eb211c80319c"
	r.Header.Set("Traceparent", "00-"+parent+"-b7ad6b7169203331-01")
	start := time.Now().Add(-time.Second)
	children := make([]sandbox.Info, 100)
	for i := range children {
		children[i] = sandbox.Info{ID: "sb-x", Timing: sandbox.Timing{VMM: time.Millisecond, Ready: 5 * time.Millisecond}}
	}
	tracer.Fork(r, start, "tag", sandbox.ForkResult{Sandboxes: children}, nil)
	tracer.Branch(r, start, "sb-x", sandbox.BranchResult{Figure: snapshot.Branch{Mode: "live",
		Ready: snapshot.Micros(time.Millisecond)}},
		errors.New("a guest's words"))
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	if want := 1 + 2*maxChildren + 2; got.count != want {
		t.Errorf("%d spans, want %d", got.count, want)
	}
	for _, name := range []string{"fork", "restore", "confirm", "branch", "until children could start"} {
		s := got.spans[name]
		if s == nil {
			t.Errorf("no span %q", name)
			continue
		}
		if id := hex.EncodeToString(s.TraceId); id != parent {
			t.Errorf("%s is part of the trace %s", name, id)
		}
		if s.EndTimeUnixNano < s.StartTimeUnixNano || strings.Contains(s.String(), "a guest's words") {
			t.Errorf("%s: %v", name, s)
		}
	}
	if c := got.spans["confirm"]; c != nil && c.EndTimeUnixNano-c.StartTimeUnixNano != uint64(4*time.Millisecond) {
		t.Errorf("confirm took %d ns", c.EndTimeUnixNano-c.StartTimeUnixNano)
	}
	if b := got.spans["branch"]; b != nil && b.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("a failed branch: %v", b.Status)
	}
	for _, want := range []string{"forkd", "1.2.3", "here"} {
		if !strings.Contains(got.about, want) {
			t.Errorf("the resource lacks %s: %s", want, got.about)
		}
	}
}

func TestTracesAreOffUnlessAskedFor(t *testing.T) {
	for _, c := range []struct {
		env  string
		on   bool
		fail bool
	}{
		{"", false, false}, {"OTEL_SERVICE_NAME=x", false, false},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://x", false, false},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://x", false, false},
		{"OTEL_TRACES_EXPORTER=otlp", true, false},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://x/v1/traces", true, false}, {"OTEL_TRACES_EXPORTER=zipkin", false, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://x OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, true},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(pair, "=")
			env[k] = v
		}
		if on, err := wanted(func(k string) string { return env[k] }); on != c.on || (err != nil) != c.fail {
			t.Errorf("%q: %v, %v", c.env, on, err)
		}
	}
	var off *Tracer
	off.Fork(nil, time.Now(), "", sandbox.ForkResult{}, nil)
	off.Branch(nil, time.Now(), "", sandbox.BranchResult{}, nil)
	if err := off.Close(); err != nil {
		t.Error(err)
	}
}
