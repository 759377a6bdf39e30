// Package tracing sends spans of forks and branches to an OpenTelemetry collector. The spans
// contain the durations of the parts of a fork or branch, and belong to the trace of the client's
// request (W3C Trace Context).
//
// The standard variables OTEL_* configure tracing; without them it is off. Spans are made after a
// fork has been answered, from times that are measured anyway, so tracing does not delay the fork.
// Spans contain the names of the snapshot and the sandboxes, but no data from inside sandboxes.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/forkd/forkd/internal/host/sandbox"
)

// Tracer makes spans. A nil *Tracer makes none.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// wanted reports whether the environment turns tracing on. The error names the settings that are
// not supported.
func wanted(getenv func(string) string) (bool, error) {
	exporter := getenv("OTEL_TRACES_EXPORTER")
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	switch {
	case getenv("OTEL_SDK_DISABLED") == "true", exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER %q: want otlp or none", exporter)
	}
	protocol := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf")
	if protocol != "http/protobuf" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: want http/protobuf (port 4318 of most collectors)",
			protocol)
	}
	return true, nil
}

// FromEnv returns the Tracer that the environment describes; nil if tracing is off. OpenTelemetry's
// library reads the variables for sampling, batching and export itself.
func FromEnv(ctx context.Context, version string, getenv func(string) string) (*Tracer, error) {
	on, err := wanted(getenv)
	if !on || err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "forkd"),
		attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return &Tracer{provider: p, tracer: p.Tracer("github.com/forkd/forkd")}, nil
}

// closeTimeout bounds the time for sending the last spans.
const closeTimeout = 5 * time.Second

// Close sends the remaining spans.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// maxChildren bounds the number of spans of one fork, which may have many children.
const maxChildren = 32

// Fork sends the spans of a fork that began at the given time and has just ended.
func (t *Tracer) Fork(r *http.Request, start time.Time, source string, res sandbox.ForkResult, err error) {
	if t == nil {
		return
	}
	ctx, span := t.begin(r, "fork", start, attribute.String("forkd.source", source),
		attribute.Int("forkd.children", len(res.Sandboxes)), attribute.Int("forkd.failed", res.Failed),
		attribute.Int("forkd.unconfirmed", res.Unconfirmed))
	for _, s := range res.Sandboxes[:min(len(res.Sandboxes), maxChildren)] {
		id := trace.WithAttributes(attribute.String("forkd.sandbox", s.ID), attribute.Bool("forkd.pooled", s.Timing.Pooled))
		running, ready := start.Add(s.Timing.VMM), start.Add(s.Timing.Ready)
		part(ctx, t.tracer, "restore", start, running, id)
		part(ctx, t.tracer, "confirm", running, ready, id)
	}
	finish(span, err)
}

// Branch sends the spans of a branch that began at the given time and has just ended.
func (t *Tracer) Branch(r *http.Request, start time.Time, source string, res sandbox.BranchResult, err error) {
	if t == nil {
		return
	}
	f := res.Figure
	ctx, span := t.begin(r, "branch", start, attribute.String("forkd.sandbox", source),
		attribute.String("forkd.snapshot", res.Info.Tag),
		attribute.String("forkd.mode", f.Mode), attribute.String("forkd.fallback", f.Fallback),
		attribute.Int64("forkd.pause_us", time.Duration(f.Pause).Microseconds()),
		attribute.Int64("forkd.stop_us", time.Duration(f.Stop).Microseconds()),
		attribute.Int64("forkd.dirty_bytes", int64(f.DirtyBytes)), attribute.Int64("forkd.faults", int64(f.Faults)))
	if f.Ready > 0 {
		part(ctx, t.tracer, "until children could start", start, start.Add(time.Duration(f.Ready)))
	}
	finish(span, err)
}

// begin starts a span as a part of the client's trace.
func (t *Tracer) begin(r *http.Request, name string, start time.Time, about ...attribute.KeyValue) (context.Context,
	trace.Span) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	return t.tracer.Start(ctx, name, trace.WithTimestamp(start), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(about...))
}

func part(ctx context.Context, t trace.Tracer, name string, from, to time.Time, about ...trace.SpanStartOption) {
	_, span := t.Start(ctx, name, append(about, trace.WithTimestamp(from))...)
	span.End(trace.WithTimestamp(to))
}

// finish ends a span. It does not send the text of the error, which may quote a guest.
func finish(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "failed: see the log of the daemon")
	}
	span.End()
}
