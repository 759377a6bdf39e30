package v1_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

func ids(list []client.Sandbox) (ids []string) {
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

func TestLabelsOfSandboxes(t *testing.T) {
	cl, url, plain := forked(t)
	ctx := t.Context()
	fork := func(labels map[string]string) string {
		f, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1, Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	a := fork(map[string]string{"job": "7", "owner": "a=b"})
	b := fork(map[string]string{"job": "8", "owner": ""})
	for _, c := range []struct {
		labels []string
		want   []string
	}{
		{nil, []string{plain, a, b}}, {[]string{"job"}, []string{a, b}}, {[]string{"job=7"}, []string{a}},
		{[]string{"job=7", "owner=a=b"}, []string{a}},
		{[]string{"job=7", "owner="}, nil}, {[]string{"owner="}, []string{b}}, {[]string{"none"}, nil},
	} {
		list, next, err := cl.SandboxPage(ctx, client.PageRequest{Labels: c.labels})
		if err != nil || next != "" || !slices.Equal(ids(list), c.want) {
			t.Errorf("%v: %v, %q, %v; want %v", c.labels, ids(list), next, err, c.want)
		}
	}
	nine := "9"
	s, err := cl.ChangeLabels(ctx, a, map[string]*string{"job": &nine, "owner": nil})
	if err != nil || !maps.Equal(s.Labels, map[string]string{"job": "9"}) {
		t.Errorf("changed: %v, %v", s.Labels, err)
	}
	for _, query := range []string{"label==x", "label=", "limit=0", "limit=x", "limit=10001", "cursor=!",
		"cursor=bm8gdGltZQ", "cursor=OQ"} {
		if status, answer := request(t, http.MethodGet, url+"/v1/sandboxes?"+query, ""); status != http.StatusBadRequest ||
			answer["field"] == nil {
			t.Errorf("%s: %d %v", query, status, answer)
		}
	}
}

// A list of more than 64 KiB is written in parts, and takes none of the memory that bodies and
// answers share. So clients that hold all of this memory cannot make the operator's list of
// sandboxes fail.
func TestListsTakeNoSharedMemory(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Memory: 1}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	labels := make(map[string]string)
	for n := range 15 {
		labels[fmt.Sprint("note", n)] = strings.Repeat("x", 250)
	}
	const calls, each = 4, 10
	for range calls {
		if _, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: each, Labels: labels}); err != nil {
			t.Fatal(err)
		}
	}
	w := &partsWriter{ResponseRecorder: httptest.NewRecorder()}
	req := httptest.NewRequest(http.MethodGet, "/v1/sandboxes", nil)
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	r.Handler.ServeHTTP(w, req)
	var list []client.Sandbox
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list) != calls*each || w.Body.Len() < 128<<10 {
		t.Errorf("status %d: %d sandboxes in %d bytes, %v", w.Code, len(list), w.Body.Len(), err)
	}
	if w.longest > 64<<10 {
		t.Errorf("%d bytes are held and written at once", w.longest)
	}
}

// partsWriter records the length of the longest write.
type partsWriter struct {
	*httptest.ResponseRecorder
	longest int
}

func (w *partsWriter) Write(p []byte) (int, error) {
	w.longest = max(w.longest, len(p))
	return w.ResponseRecorder.Write(p)
}

// A member that exists all the time is on exactly one page, even if other members are added or
// removed.
func TestPages(t *testing.T) {
	cl, _, _ := forked(t)
	ctx := t.Context()
	for range 6 {
		if _, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := cl.Sandboxes(ctx)
	if err != nil || len(all) != 7 {
		t.Fatalf("%v, %v", ids(all), err)
	}
	page := func(cursor string) ([]string, string) {
		t.Helper()
		list, next, err := cl.SandboxPage(ctx, client.PageRequest{Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		return ids(list), next
	}
	got, next := page("")
	for _, gone := range []string{all[1].ID, all[2].ID} { // the member that the cursor names, and the next one
		if err := cl.Kill(ctx, gone); err != nil {
			t.Fatal(err)
		}
	}
	f, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for next != "" {
		var more []string
		more, next = page(next)
		got = append(got, more...)
	}
	want := []string{all[0].ID, all[1].ID, all[3].ID, all[4].ID, all[5].ID, all[6].ID, f.Sandboxes[0].ID}
	if !slices.Equal(got, want) {
		t.Errorf("pages have %v, want %v", got, want)
	}
	tags, next, err := cl.SnapshotPage(ctx, client.PageRequest{Limit: 1})
	if err != nil || next != "" || len(tags) != 1 || tags[0].Tag != "a.b" {
		t.Errorf("snapshots: %v, %q, %v", tags, next, err)
	}
}
