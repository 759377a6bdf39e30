// Package apitest checks the traffic of tests against the document of the REST API,
// api/openapi.yaml. A request or an answer that the document does not allow fails the test.
//
// The checks are stricter than clients are allowed to be. A field of an answer that is not in the
// document is an error here, but clients must ignore such a field. The package does not depend on
// the daemon, and is used only in tests.
package apitest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/api"
)

// T receives reports of traffic that violates the document. testing.TB implements it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Checked returns a handler that passes requests to another handler (next). It reports to t any
// traffic that violates the document. A request that violates the document is reported only if the
// other handler accepts it, because tests send invalid requests on purpose.
func Checked(t T, next http.Handler) http.Handler {
	t.Helper()
	router, err := load()
	if err != nil {
		t.Fatalf("api/openapi.yaml: %v", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := exchange{answer: answer{ResponseWriter: w, status: http.StatusOK}}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &c.sent), r.Body}
		next.ServeHTTP(&c.answer, r)
		if err := c.check(router, r); err != nil {
			t.Errorf("%s %s: not as api/openapi.yaml has it: %v", r.Method, r.URL, err)
		}
	})
}

// exchange is a request and its answer.
type exchange struct {
	sent   bytes.Buffer // the part of the request's body that the handler has read
	answer answer
}

// answer is a ResponseWriter that keeps a copy of the answer.
type answer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.body.Write(p)
	return a.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker. Data after an upgrade is not checked, because it is not in the
// document.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.status = http.StatusSwitchingProtocols
	return http.NewResponseController(a.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// check compares an exchange with the document.
func (c *exchange) check(router routers.Router, r *http.Request) error {
	sent := r.Clone(context.WithoutCancel(r.Context()))
	sent.Body = io.NopCloser(&c.sent)
	sent.URL.Scheme, sent.URL.Host = "", "" // the document has no server address
	if own, foreign := guestsRoute(sent); foreign {
		if own == "" || c.answer.Header().Get("Forkd-Error") == "" {
			return nil // the document does not describe the traffic of servers in sandboxes
		}
		sent.Method, sent.URL.Path, sent.URL.RawPath = http.MethodGet, own, ""
	}
	route, params, err := router.FindRoute(sent)
	if err != nil {
		if c.answer.status == http.StatusNotFound || c.answer.status == http.StatusMethodNotAllowed {
			return nil
		}
		return fmt.Errorf("answered with %d: %w", c.answer.status, err)
	}
	options := &openapi3filter.Options{
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc, // other tests check tokens
		IncludeResponseStatus: true, RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true, MultiError: true,
	}
	in := &openapi3filter.RequestValidationInput{Request: sent, PathParams: params, Route: route, Options: options}
	if c.answer.status < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(sent.Context(), in); err != nil {
			return fmt.Errorf("the request was answered with %d: %w", c.answer.status, err)
		}
	}
	err = openapi3filter.ValidateResponse(sent.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: c.answer.status, Header: c.answer.Header(),
		Body: io.NopCloser(&c.answer.body), Options: options,
	})
	if err != nil {
		return fmt.Errorf("the answer with %d: %w", c.answer.status, err)
	}
	return nil
}

// byPath matches the paths, and byHost the host names, of requests to servers in sandboxes.
var (
	byPath = regexp.MustCompile(`^/v1/sandboxes/[^/]+/proxy/[^/]+/?`)
	byHost = regexp.MustCompile(`(?i)^[0-9]+-sb-`)
)

// guestsRoute reports whether a request is for a server in a sandbox. It also returns the
// document's path for such a request, or "" if the document has no such path.
func guestsRoute(r *http.Request) (own string, ok bool) {
	if byHost.MatchString(r.Host) {
		return "", true
	}
	prefix := byPath.FindString(r.URL.Path)
	return strings.TrimSuffix(prefix, "/") + "/rest", prefix != ""
}

// Proxy serves the API of a daemon at a unix socket, with the checks of Checked, and returns its
// URL. The proxy ends with t.
func Proxy(t testing.TB, socket string) string {
	t.Helper()
	proxy := Checked(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "forkd" },
		Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}},
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // an answer may begin before the end of its request
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// load returns a router for the document. It reads the document only once.
var load = sync.OnceValues(func() (routers.Router, error) {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", decodeLines)
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/event-stream", decodeEvents)
	openapi3filter.RegisterBodyDecoder("application/x-tar", openapi3filter.FileBodyDecoder)
	p, err := api.FS.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(p, &doc); err != nil {
		return nil, err
	}
	closeObjects(doc)
	if p, err = yaml.Marshal(doc); err != nil {
		return nil, err
	}
	parsed, err := openapi3.NewLoader().LoadFromData(p)
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(parsed)
})

// decodeLines decodes lines of JSON as an array, because the document describes the lines as an
// array.
func decodeLines(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
	list := []any{}
	for dec := json.NewDecoder(body); ; {
		var message any
		if err := dec.Decode(&message); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, message)
	}
}

// decodeEvents is like decodeLines, but for the data of server-sent events.
func decodeEvents(body io.Reader, h http.Header, s *openapi3.SchemaRef, enc openapi3filter.EncodingFn) (any, error) {
	var data bytes.Buffer
	for lines := bufio.NewReader(body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return decodeLines(&data, h, s, enc) // the rest is an incomplete line
		}
		if found, ok := strings.CutPrefix(line, "data: "); ok {
			data.WriteString(found)
		}
	}
}

// closeObjects changes the document so that every object schema refuses unknown fields. The parts
// of an allOf are not changed, because each part is also compared with the fields of the other
// parts. The schema that combines the parts refuses unknown fields instead.
func closeObjects(doc map[string]any) {
	schemas := asMap(asMap(doc["components"])["schemas"])
	for _, name := range slices.Collect(maps.Keys(schemas)) {
		schema := asMap(schemas[name])
		parts, composed := schema["allOf"].([]any)
		switch {
		case composed:
			schema["unevaluatedProperties"] = false
			for _, part := range parts {
				if ref, ok := asMap(part)["$ref"].(string); ok {
					asMap(part)["$ref"] = ref + openSuffix
				}
			}
		case schema["properties"] != nil:
			schemas[name+openSuffix] = maps.Clone(schema)
			schema["additionalProperties"] = false
		}
	}
}

// openSuffix is the suffix of the name under which closeObjects keeps the original of a schema.
const openSuffix = "Part"

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}
