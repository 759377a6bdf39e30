package v1_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// exported returns the entries of an export as text.
func exported(t *testing.T, cl *client.Client, req client.ExportRequest) (string, error) {
	t.Helper()
	archive, err := cl.Export(t.Context(), req)
	if err != nil {
		return "", err
	}
	defer archive.Close()
	var list []string
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, archive) // an answer that was broken off ends with an error
			return strings.Join(list, "|"), err
		}
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return "", err
		}
		list = append(list, fmt.Sprintf("%c %s %q", h.Typeflag, h.Name, text))
	}
}

func TestExport(t *testing.T) {
	file := diffproto.Node{Type: diffproto.Regular, Mode: 0o644}
	r := start(t, apirig.Options{Diff: vmfake.Differs(&diffproto.Entry{Path: "/srv/a", New: file},
		&diffproto.Entry{Path: "/srv/gone", Old: file})})
	s := box(t, r)
	const want = `0 srv/a "new\n"|0 srv/.wh.gone ""`
	for _, req := range []client.ExportRequest{{To: s.ID}, {From: s.ID, To: r.Parent.Tag, Path: "/srv", Partial: true}} {
		if got, err := exported(t, r.Client, req); err != nil || got != want {
			t.Errorf("%+v: %s, %v", req, got, err)
		}
	}
	for field, req := range map[string]client.ExportRequest{
		"to":   {From: r.Parent.Tag},
		"from": {To: r.Parent.Tag},
		"path": {To: s.ID, Path: "srv"},
	} {
		_, err := r.Export(t.Context(), req)
		var problem *client.Error
		if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest || problem.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := r.Export(t.Context(), client.ExportRequest{From: "none", To: s.ID}); !client.IsStatus(err,
		http.StatusNotFound) {
		t.Errorf("%v", err)
	}
	left(t, r, 1, 1)
}

// If the VM refuses the comparison, the client receives no archive. If the VM fails in the middle
// of the archive, or sends other data, the client receives an archive without an end, or an error.
func TestExportOfHostileDisks(t *testing.T) {
	for name, c := range map[string]struct {
		guest  func(net.Conn)
		status int // 0: the archive is broken off
		field  string
	}{
		"partial": {func(c net.Conn) {
			_ = diffproto.WriteRefused(c, &diffproto.RefusedError{Field: "partial", Reason: "set partial"})
		}, http.StatusBadRequest, "partial"},
		"damaged": {func(c net.Conn) { _ = diffproto.WriteRefused(c, errors.New("structure needs cleaning")) },
			http.StatusBadGateway, ""},
		"an entry": {func(c net.Conn) {
			_ = diffproto.WriteEntry(c, &diffproto.Entry{Path: "/a", New: diffproto.Node{Type: diffproto.Regular}})
		}, http.StatusInternalServerError, ""},
		"no end": {func(c net.Conn) {
			_ = diffproto.WriteDone(c, diffproto.Done{})
			_, _ = diffproto.NewPieceWriter(c).Write(make([]byte, 3<<20)) // zeros are the end of an archive
		}, 0, ""},
		"a late refusal": {func(c net.Conn) {
			_ = diffproto.WriteDone(c, diffproto.Done{})
			_, _ = diffproto.NewPieceWriter(c).Write(make([]byte, 1024))
			_ = diffproto.WriteRefused(c, errors.New("input/output error"))
		}, 0, ""},
	} {
		r := start(t, apirig.Options{Diff: func(_ *vmfake.VMM, conn net.Conn) {
			defer conn.Close()
			if _, err := diffproto.ReadRequest(conn); err != nil {
				return
			}
			_ = diffproto.ReadRanges(conn, func(diffproto.Range) error { return nil })
			c.guest(conn)
		}})
		s := box(t, r)
		_, err := exported(t, r.Client, client.ExportRequest{To: s.ID})
		var problem *client.Error
		switch is := errors.As(err, &problem); {
		case c.status == 0 && (err == nil || is),
			c.status != 0 && (!is || problem.Status != c.status || problem.Field != c.field):
			t.Errorf("%s: %v", name, err)
		}
		left(t, r, 1, 1)
	}
}

// An export requires the scope run, because it returns the content of guests' files.
func TestExportNeedsRun(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "r", Scope: auth.Read}, {Name: "u", Scope: auth.Run}}})
	s := box(t, r)
	for name, want := range map[string]int{"r": http.StatusForbidden, "u": 0} {
		cl, err := client.New(r.URL, r.Tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := exported(t, cl, client.ExportRequest{To: s.ID}); want == 0 && err != nil ||
			want != 0 && !client.IsStatus(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
